/// Reads JSON strictly, for tests of what is written.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace farandole::testing {

struct Json {
  enum class Type { Null, Bool, Number, String, Array, Object };
  Type type = Type::Null;
  std::string text;  ///< of a number: as written; of a string: without escapes
  std::vector<Json> items;
  std::map<std::string, Json> members;

  [[nodiscard]] bool has(const std::string& key) const { return members.contains(key); }
  /// Text of a member; empty if there is none.
  [[nodiscard]] std::string operator[](const std::string& key) const {
    const auto found = members.find(key);
    return found == members.end() ? "" : found->second.text;
  }
  [[nodiscard]] long long number(const std::string& key) const {
    return has(key) ? std::stoll(members.at(key).text) : -1;
  }
};

class JsonReader {
 public:
  /// The whole text as one value; none if it is not JSON.
  static std::optional<Json> read(std::string_view text) {
    JsonReader reader(text);
    Json value;
    if (!reader.value(value)) return std::nullopt;
    reader.skip_space();
    return reader.rest_.empty() ? std::optional(std::move(value)) : std::nullopt;
  }

 private:
  explicit JsonReader(std::string_view text) : rest_(text) {}

  void skip_space() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n\r\t"), rest_.size()));
  }
  bool take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  bool value(Json& out) {
    skip_space();
    if (rest_.empty()) return false;
    switch (rest_.front()) {
      case '{':
        return object(out);
      case '[':
        return array(out);
      case '"':
        out.type = Json::Type::String;
        return string(out.text);
      case 't':
      case 'f':
        out.type = Json::Type::Bool;
        return take("true") || take("false");
      case 'n':
        return take("null");
      default:
        return number(out);
    }
  }

  bool number(Json& out) {
    out.type = Json::Type::Number;
    const std::size_t length = std::min(rest_.find_first_not_of("-0123456789.eE+"), rest_.size());
    out.text = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return length != 0;
  }

  bool array(Json& out) {
    out.type = Json::Type::Array;
    take("[");
    skip_space();
    if (take("]")) return true;
    do {
      if (!value(out.items.emplace_back())) return false;
      skip_space();
    } while (take(","));
    return take("]");
  }

  bool object(Json& out) {
    out.type = Json::Type::Object;
    take("{");
    skip_space();
    if (take("}")) return true;
    do {
      skip_space();
      std::string key;
      if (!string(key)) return false;
      skip_space();
      if (!take(":") || out.members.contains(key) || !value(out.members[key])) return false;
      skip_space();
    } while (take(","));
    return take("}");
  }

  bool string(std::string& out) {
    if (!take("\"")) return false;
    while (!rest_.empty()) {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (rest_.empty()) return false;
      const char escaped = rest_.front();
      rest_.remove_prefix(1);
      if (escaped == 'u') {
        if (rest_.size() < 4) return false;
        const int code = std::stoi(std::string(rest_.substr(0, 4)), nullptr, 16);
        out += code < 0x80 ? static_cast<char>(code) : '?';
        rest_.remove_prefix(4);
      } else if (std::string_view("\"\\/").find(escaped) != std::string_view::npos) {
        out += escaped;
      } else if (std::string_view("bfnrt").find(escaped) != std::string_view::npos) {
        out += '\n';
      } else {
        return false;
      }
    }
    return false;
  }

  std::string_view rest_;
};

}  // namespace farandole::testing
