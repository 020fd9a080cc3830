#include "cuda/context.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "cuda/event.h"
#include "cuda/memory.h"
#include "faults.h"

namespace farandole::fakes {
namespace {

/// Numbers of the devices that this process sees.
std::vector<int> visible(int count) {
  std::vector<int> numbers;
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  if (variable == nullptr) {
    for (int i = 0; i < count; ++i) numbers.push_back(i);
    return numbers;
  }
  std::string_view text = variable;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    int number = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc{} || end != word.data() + word.size() || number < 0 || number >= count) {
      break;
    }
    if (std::ranges::find(numbers, number) != numbers.end()) return {};  // as the driver does
    numbers.push_back(number);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
  }
  return numbers;
}

}  // namespace

void Context::retain() {
  const std::scoped_lock lock(retaining_);
  if (retained_++ != 0) return;
  null_stream_.store(Stream::keep(new Stream(*this, true)), std::memory_order_release);
  active_.store(true, std::memory_order_relaxed);
}

bool Context::release() {
  const std::scoped_lock lock(retaining_);
  if (retained_ == 0) return false;
  if (--retained_ != 0) return true;
  active_.store(false, std::memory_order_relaxed);
  break_with(kDriverSuccess);
  for (Stream* stream : streams(false)) {
    if (stream->bury()) stream->close();
  }
  null_stream().bury();
  null_stream().close();
  Event::for_each([this](Event& event) {
    if (&event.context() == this) event.bury();
  });
  Memory::get().release_all(*this);
  return true;
}

Stream* Context::make_stream(bool blocking) {
  Stream* stream = Stream::keep(new Stream(*this, blocking));
  const std::unique_lock lock(listing_);
  std::erase_if(streams_, [](const Stream* old) { return !old->alive(); });
  streams_.push_back(stream);
  return stream;
}

std::vector<Stream*> Context::streams(bool blocking_only) const {
  std::vector<Stream*> found;
  const std::shared_lock lock(listing_);
  for (Stream* stream : streams_) {
    if (stream->alive() && (stream->blocking() || !blocking_only)) found.push_back(stream);
  }
  return found;
}

void Context::enqueue(Stream& stream, std::function<void()> work, Ticket then) {
  Stream& null = null_stream();
  if (&stream == &null) {
    for (Stream* other : streams(true)) null.wait_for(other->mark());
    if (then.word() == nullptr) then = Ticket::make();
    null.push(std::move(work), Stream::Pace::Late, then);
    null_place_.store(then.word(), std::memory_order_relaxed);
    return;
  }
  if (stream.blocking()) {
    const Ticket place(null_place_.load(std::memory_order_relaxed));
    if (place.word() != nullptr) stream.wait_for(place);
  }
  stream.push(std::move(work), Stream::Pace::Late, then);
}

Ticket Context::mark(Stream& stream) {
  const Ticket ticket = Ticket::make();
  enqueue(stream, [] {}, ticket);
  return ticket;
}

void Context::synchronize() {
  for (Stream* stream : streams(false)) stream->finish();
  null_stream().finish();
}

Devices& Devices::get() {
  static Devices& devices = *new Devices;
  return devices;
}

Devices::Devices() {
  const auto count = static_cast<int>(number_of_environment("FAKE_CUDA_DEVICES", 1));
  for (const int number : visible(count)) {
    contexts_.push_back(new Context(static_cast<int>(contexts_.size()), number));
  }
}

Context* Devices::context(int device) const noexcept {
  if (device < 0 || static_cast<std::size_t>(device) >= contexts_.size()) return nullptr;
  return contexts_[static_cast<std::size_t>(device)];
}

Context* Devices::find(const DriverContextOpaque* handle) const noexcept {
  for (Context* context : contexts_) {
    if (static_cast<const void*>(context) == handle) return context;
  }
  return nullptr;
}

std::vector<Context*>& context_stack() {
  thread_local std::vector<Context*> stack;
  return stack;
}

}  // namespace farandole::fakes
