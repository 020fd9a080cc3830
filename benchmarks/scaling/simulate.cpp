/// Simulates the control plane of jobs of many sizes and writes one JSON object per line.
///
///   bench_scaling simulate HOSTS RANKS_PER_HOST TENSORS [NAME=NUMBER ...]   names: struct Network;
///                                             sets=1: in process sets, see ControlPlane
///   bench_scaling probe-serve PORT            answers probes until the prober leaves
///   bench_scaling probe ADDRESS PORT          what a message costs here, for struct Network

#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "control_plane.h"
#include "transport/control_channel.h"

namespace farandole::scaling {
namespace {

double seconds() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

void print(const char* what, const Step& step, int hosts, int per_host, int tensors) {
  Load busiest;
  Load root = step.loads.front();
  for (const Load& load : step.loads) {
    if (load.messages() > busiest.messages()) busiest = load;
  }
  std::uint64_t all = 0;
  for (const Load& load : step.loads) all += load.messages_out;
  std::printf(
      "{\"what\": \"%s\", \"hosts\": %d, \"ranks\": %d, \"tensors\": %d, \"first_us\": %.2f, "
      "\"last_us\": %.2f, \"busiest_in\": %llu, \"busiest_out\": %llu, \"busiest_bytes_in\": %llu, "
      "\"busiest_bytes_out\": %llu, \"root_messages\": %llu, \"root_processor_us\": %.2f, "
      "\"root_local_messages\": %llu, \"all_messages\": %llu}\n",
      what, hosts, hosts * per_host, tensors, step.first, step.last,
      static_cast<unsigned long long>(busiest.messages_in),
      static_cast<unsigned long long>(busiest.messages_out),
      static_cast<unsigned long long>(busiest.bytes_in),
      static_cast<unsigned long long>(busiest.bytes_out),
      static_cast<unsigned long long>(root.messages()), root.processor,
      static_cast<unsigned long long>(step.local.front().messages()),
      static_cast<unsigned long long>(all));
  std::fflush(stdout);
}

bool set(Network& network, const std::string& word) {
  const auto equals = word.find('=');
  if (equals == std::string::npos) return false;
  const std::string name = word.substr(0, equals);
  const double value = std::atof(word.c_str() + equals + 1);
  if (name == "latency") {
    network.latency = value;
  } else if (name == "message") {
    network.message = value;
  } else if (name == "rate") {
    network.rate = value;
  } else if (name == "local_latency") {
    network.local_latency = value;
  } else if (name == "local_message") {
    network.local_message = value;
  } else if (name == "processor") {
    network.processor = value;
  } else {
    return false;
  }
  return true;
}

int simulate(int hosts, int per_host, int tensors, const Network& network, bool sets) {
  // What all ranks have freed would be put in order at the expense of one of them.
  ::mallopt(M_MXFAST, 0);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  const std::size_t before = resident_bytes();
  const double began = seconds();
  ControlPlane plane(hosts, per_host, network, sets);
  const double built = seconds();
  const auto names = tensor_names(tensors);
  const auto show = [&](const char* what, bool straggler) {
    const Step step = plane.run(names, straggler);
    if (step.loads.empty()) {
      std::fprintf(stderr, "the step of %d ranks does not end\n", plane.size());
      std::exit(1);
    }
    print(what, step, hosts, per_host, tensors);
  };
  show("first", false);
  for (int i = 0; i < 3; ++i) {
    show("together", false);
    show("straggler", true);
  }
  std::printf(
      "{\"what\": \"world\", \"hosts\": %d, \"ranks\": %d, \"tensors\": %d, \"build_us\": %.1f, "
      "\"bytes\": %zu, \"simulated_s\": %.2f}\n",
      hosts, plane.size(), tensors, (built - began) * 1e6 / plane.size(),
      (resident_bytes() - before) / static_cast<std::size_t>(plane.size()), seconds() - built);
  return 0;
}

Fd connected(const char* address, int port, bool serve) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, address, &where.sin_addr);
  auto* name = reinterpret_cast<sockaddr*>(&where);
  if (serve) {
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(fd.get(), name, sizeof where) != 0 || ::listen(fd.get(), 1) != 0) return Fd();
    std::printf("ready\n");
    std::fflush(stdout);
    return Fd(::accept(fd.get(), nullptr, nullptr));
  }
  if (::connect(fd.get(), name, sizeof where) != 0) return Fd();
  return fd;
}

/// The next message; sleeps for it, as a rank does. Empty at the end.
std::size_t receive(SocketChannel& channel) {
  for (;;) {
    auto message = channel.receive();
    if (!message) return 0;
    if (*message) return (*message)->size();
    if (!channel.flush()) return 0;
    pollfd waits = channel.wants();
    ::poll(&waits, 1, -1);
  }
}

int serve(int port) {
  auto socket = Socket::adopt(connected("0.0.0.0", port, true), 1);
  if (!socket) return 1;
  SocketChannel channel(std::move(*socket));
  const std::vector<std::byte> answer(32);
  // A message of one byte begins a burst, which is not answered but at its end.
  for (std::size_t bytes = receive(channel); bytes != 0; bytes = receive(channel)) {
    if (bytes == 1) continue;
    if (!channel.send(answer) || !channel.flush()) return 1;
  }
  return 0;
}

int probe(const char* address, int port) {
  auto socket = Socket::adopt(connected(address, port, false), 0);
  if (!socket) return 1;
  SocketChannel channel(std::move(*socket));
  const std::vector<std::byte> question(32);
  const std::vector<std::byte> unanswered(1);
  std::vector<double> trips;
  for (int i = 0; i < 600; ++i) {
    const double began = seconds();
    if (!channel.send(question) || !channel.flush() || receive(channel) == 0) return 1;
    trips.push_back((seconds() - began) * 1e6);
  }
  std::nth_element(trips.begin(), trips.begin() + 300, trips.end());
  std::vector<double> bursts;
  constexpr int kBurst = 2000;
  for (int i = 0; i < 7; ++i) {
    const double began = seconds();
    for (int k = 0; k < kBurst; ++k) {
      if (!channel.send(unanswered) || !channel.flush()) return 1;
    }
    if (!channel.send(question) || !channel.flush() || receive(channel) == 0) return 1;
    bursts.push_back((seconds() - began) * 1e6 / kBurst);
  }
  std::nth_element(bursts.begin(), bursts.begin() + 3, bursts.end());
  std::printf("{\"round_trip_us\": %.2f, \"message_us\": %.2f}\n", trips[300], bursts[3]);
  return 0;
}

}  // namespace
}  // namespace farandole::scaling

int main(int count, char** words) {
  using namespace farandole::scaling;
  const std::string what = count > 1 ? words[1] : "";
  if (what == "simulate" && count >= 5) {
    Network network;
    bool sets = false;
    for (int i = 5; i < count; ++i) {
      if (words[i] == std::string("sets=1")) {
        sets = true;
        continue;
      }
      if (!set(network, words[i])) return std::fprintf(stderr, "unknown: %s\n", words[i]), 2;
    }
    return simulate(std::atoi(words[2]), std::atoi(words[3]), std::atoi(words[4]), network, sets);
  }
  if (what == "probe-serve" && count == 3) return serve(std::atoi(words[2]));
  if (what == "probe" && count == 4) return probe(words[2], std::atoi(words[3]));
  std::fprintf(stderr, "see the head of simulate.cpp\n");
  return 2;
}
