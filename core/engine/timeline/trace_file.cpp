#include "engine/timeline/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "collectives/registry.h"
#include "text.h"

namespace farandole {

namespace {

using Mark = TimelineEvent::Mark;
using Span = TimelineEvent::Span;

/// Bytes of text per write. If the file is read, or the process killed, between two pages of a
/// write, the last lines and the closing bracket are missing. Viewers accept that.
constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

std::string span_name(Span span, Kind kind) {
  const Rules& rules = rules_of(kind);
  switch (span) {
    case Span::Negotiation:
      return "NEGOTIATE_" + std::string(rules.name);
    case Span::Operation:
      return std::string(rules.name);
    case Span::Transfer:
      return std::string(rules.transfer.empty() ? rules.name : rules.transfer);
    case Span::AllocateOutput:
      return "ALLOCATE_OUTPUT";
  }
  return {};
}

void append_number(std::string& out, std::int64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out.append(digits, end);
}

bool write_all(int fd, std::string_view text, off_t at) {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(fd, text.data(), text.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
    at += written;
  }
  return true;
}

/// Pads `text`, which will lie at offset `at`, with spaces so that no line crosses a page. The
/// system writes page by page, and a process may be killed in between, so each line is in the file
/// whole or not at all. (A line longer than a page still crosses one.)
std::string page_by_page(std::string_view text, off_t at) {
  constexpr std::size_t kPage = 4096;
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n', 1), text.size());
    const std::size_t place = (static_cast<std::size_t>(at) + out.size()) % kPage;
    if (place != 0 && place + end > kPage && text.front() == '\n') out.append(kPage - place, ' ');
    out += text.substr(0, end);
    text.remove_prefix(end);
  }
  return out;
}

bool negotiates(const TimelineEvent& event) {
  return event.span == Span::Negotiation;  // so are ticks and failures
}

/// Makes the folders of `path` that are missing. Returns 0, or an errno.
int make_folders(const std::string& path) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos;
       end = path.find('/', end + 1)) {
    if (::mkdir(path.substr(0, end).c_str(), 0777) != 0 && errno != EEXIST) return errno;
  }
  return 0;
}

/// Opens the file at `path`, or creates it, with its folders. An existing one must be a regular
/// file of this user: otherwise another user who may write to the folder could have put a link or a
/// pipe there.
Result<Fd> open_own_file(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const auto make = [&] { return Fd(::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0666)); };
  Fd made = make();
  if (!made && errno == ENOENT) {
    if (const int code = make_folders(path); code != 0) {
      return Error::system("Cannot make the folder of the timeline " + path, code);
    }
    made = make();
  }
  if (made) return made;
  if (errno != EEXIST) return Error::system("Cannot write the timeline " + path, errno);
  Fd fd(::open(path.c_str(), kFlags));
  struct stat status{};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    const int code = errno;
    Error error = Error::system("Cannot write the timeline " + path, code);
    if (code == ELOOP) error.message += " (it is a symbolic link, which is not followed)";
    return error;
  }
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid() || status.st_nlink > 1) {
    return Error::system("Cannot write the timeline " + path +
                             ": what is there is not a file of this user with this name alone",
                         EPERM);
  }
  return fd;
}

}  // namespace

Result<std::unique_ptr<TraceFile>> TraceFile::open(const std::string& path, TimePoint origin,
                                                   std::int64_t epoch_micros, const Log& log) {
  Result<Fd> fd = open_own_file(path);
  if (!fd) return fd.error();
  struct stat status{};
  if (::fstat(fd->get(), &status) != 0) {
    return Error::system("Cannot write the timeline " + path, errno);
  }
  std::unique_ptr<TraceFile> file(
      new TraceFile(path, std::move(*fd), origin, epoch_micros, log));  // NOLINT: private
  file->device_ = status.st_dev;
  file->inode_ = status.st_ino;
  return file;
}

TraceFile::TraceFile(std::string path, Fd fd, TimePoint origin, std::int64_t epoch_micros,
                     const Log& log)
    : path_(std::move(path)),
      fd_(std::move(fd)),
      origin_(origin),
      epoch_micros_(epoch_micros),
      log_(log) {}

void TraceFile::begin() {
  broken_ = ::ftruncate(fd_.get(), 0) != 0 || !write_all(fd_.get(), "[]", 0);
  if (broken_) log_.write(LogLevel::Error, Error::system("Cannot write to " + path_, errno).what());
  bracket_ = 1;
}

void TraceFile::take(std::span<const TimelineEvent> events, const TrackNames& names) {
  if (broken_) return;
  for (const TimelineEvent& event : events) {
    apply(event, names);
    if (text_.size() >= kPieceBytes) flush();
  }
  flush();
}

// --- rows: what is open, and what may be drawn ------------------------------------------------

TraceFile::Row* TraceFile::row_of(const TimelineEvent& event, const TrackNames& names) {
  const auto found = rows_.find(event.track);
  if (found != rows_.end()) return &found->second;
  const std::string* name = names.find(event.track);
  // An operation that began in an earlier file is not drawn in this one.
  if (name == nullptr || event.mark == Mark::End) return nullptr;
  Row& row = rows_[event.track];
  row.pid = ++last_pid_;
  name_row(row.pid, *name);
  return &row;
}

void TraceFile::apply(const TimelineEvent& event, const TrackNames& names) {
  if (event.mark == Mark::Cycle) {
    cycle_start(event.time);
    return;
  }
  if (event.mark == Mark::Abort) {
    fail_all(event.time);
    return;
  }
  Row* row = row_of(event, names);
  if (row == nullptr) return;
  draw_or_keep(*row, event);
  if (!event.last) return;
  if (names.once(event.track)) {
    rows_.erase(event.track);
    return;
  }
  for (TimelineEvent& kept : std::exchange(row->next, {})) {
    kept.time = std::max(kept.time, event.time);
    draw_or_keep(*row, kept);
  }
}

void TraceFile::draw_or_keep(Row& row, const TimelineEvent& event) {
  if (row.decided && negotiates(event)) {
    row.next.push_back(event);
  } else {
    draw(row, event);
  }
}

void TraceFile::draw(Row& row, const TimelineEvent& event) {
  switch (event.mark) {
    case Mark::Begin:
      if (event.span == Span::Negotiation) {
        close(row, event.time);  // an operation that the removal of its process set has left open
      } else if (event.span == Span::Operation) {
        row.decided = true;
      } else if (row.depth == 0) {
        return;  // inside an operation that began in an earlier file
      }
      begin_span(row, span_name(event.span, event.kind), event.time);
      break;
    case Mark::End:
      if (event.span == Span::Negotiation) row.decided = true;
      if (event.last) row.decided = false;
      if (row.depth > 0) end_span(row, event.time, event.signature.get());
      break;
    case Mark::Tick:
      tick(row, event.member, event.time);
      break;
    default:
      fail(row, event.time);
      break;
  }
}

void TraceFile::close(Row& row, TimePoint time) {
  while (row.depth > 0) end_span(row, time, nullptr);
}

void TraceFile::fail(Row& row, TimePoint time) {
  close(row, time);
  begin_span(row, "ERROR", time);
  end_span(row, time, nullptr);
}

void TraceFile::fail_all(TimePoint time) {
  std::vector<Row*> open;
  for (auto& [track, row] : rows_) {
    if (row.depth > 0 || row.decided) open.push_back(&row);
  }
  std::ranges::sort(open, {}, &Row::pid);
  for (Row* row : open) {
    fail(*row, time);
    row->decided = false;
    row->next.clear();
  }
}

// --- records ------------------------------------------------------------------------------------

void TraceFile::next_record() {
  if (!empty_) {
    text_ += ",\n";
    return;
  }
  empty_ = false;
  text_ +=
      "\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"args\": "
      "{\"start_time_since_epoch_in_micros\": ";
  append_number(text_, epoch_micros_);
  text_ +=
      "}},\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": 0, \"args\": "
      "{\"sort_index\": 0}},\n";
}

void TraceFile::name_row(int pid, std::string_view name) {
  next_record();
  text_ += "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": ";
  append_number(text_, pid);
  text_ += ", \"args\": {\"name\": ";
  append_json(text_, name);
  text_ += "}},\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": ";
  append_number(text_, pid);
  text_ += ", \"args\": {\"sort_index\": ";
  append_number(text_, pid);
  text_ += "}}";
}

void TraceFile::append_time(TimePoint time) {
  text_ += ", \"ts\": ";
  append_number(text_,
                std::chrono::duration_cast<std::chrono::microseconds>(time - origin_).count());
}

void TraceFile::append_pid(const Row& row) {
  text_ += ", \"pid\": ";
  append_number(text_, row.pid);
}

void TraceFile::begin_span(Row& row, std::string_view name, TimePoint time) {
  ++row.depth;
  next_record();
  text_ += "{\"ph\": \"B\", \"name\": \"";
  text_ += name;
  text_ += '"';
  append_time(time);
  append_pid(row);
  text_ += '}';
}

void TraceFile::end_span(Row& row, TimePoint time, const Signature* signature) {
  --row.depth;
  next_record();
  text_ += "{\"ph\": \"E\"";
  append_time(time);
  append_pid(row);
  if (signature != nullptr) {
    text_ += ", \"args\": {\"dtype\": \"";
    text_ += name_of(signature->dtype);
    text_ += "\", \"shape\": \"";
    text_ += to_string(signature->shape);
    text_ += "\"}";
  }
  text_ += '}';
}

void TraceFile::tick(const Row& row, std::int32_t member, TimePoint time) {
  next_record();
  text_ += "{\"ph\": \"X\", \"name\": \"";
  append_number(text_, member);
  text_ += '"';
  append_time(time);
  append_pid(row);
  text_ += ", \"dur\": 0}";
}

void TraceFile::cycle_start(TimePoint time) {
  next_record();
  text_ += "{\"ph\": \"i\", \"name\": \"CYCLE_START\"";
  append_time(time);
  text_ += ", \"s\": \"g\"}";
}

void TraceFile::flush() {
  if (text_.empty() || broken_) return;
  constexpr std::string_view kClosing = "\n]";
  text_ = page_by_page(text_, bracket_);
  const auto written = static_cast<off_t>(text_.size());
  text_ += kClosing;
  if (write_all(fd_.get(), text_, bracket_)) {
    bracket_ += written;
  } else {
    broken_ = true;
    Error error = Error::system("Cannot write to the timeline " + path_, errno);
    error.message += ". It ends here";
    log_.write(LogLevel::Error, error.what());
    // The bracket overwrites bytes that the file already had, so this also works on a full disk.
    if (::ftruncate(fd_.get(), bracket_) == 0) write_all(fd_.get(), kClosing, bracket_);
  }
  text_.clear();
}

}  // namespace farandole
