// See bootstrap_connect.h.
#include "host/bootstrap_connect.h"

#include <net/if.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <thread>

#include "host/log.h"
#include "host/netif.h"
#include "host/params.h"

namespace mk {
namespace {

// The hub listens before its id exists, so a refusal means that it has ended; but a network that is just coming up, or a
// firewall, can refuse too for a moment.
constexpr int refusedMs = 1000;
// The hub gives way to nothing but a flood of strangers, which may hit us.
constexpr int maxDropped = 8;
constexpr int maxPauseMs = 250;

// A link-local address needs the number of the interface it is reached through, which is each host's own.
Address reachableFromHere(const Address& address) {
  if (!address.linkLocal()) return address;
  const auto interfaces = listInterfaces();
  try {
    return address.withScope(if_nametoindex(chooseInterface(interfaces, params().socketIfname, "inet6").name.c_str()));
  } catch (const Error&) {
    return address;  // this host may still have an interface of the hub's number
  }
}

class Joining {
 public:
  Joining(const HubPlace& place, Hello hello, int timeoutMs)
      : address_(reachableFromHere(place.address)),
        hello_(std::move(hello)),
        timeoutMs_(timeoutMs),
        deadline_(afterMs(timeoutMs)) {}

  JoinedHub run() {
    int dropped = 0;
    int pauseMs = 10;
    TimePoint firstRefusal = TimePoint::max();
    for (;;) {
      int error = 0;
      Fd fd = connectStream(address_, deadline_, &error);
      if (fd) {
        if (auto joined = talk(std::move(fd)); joined.has_value()) return std::move(*joined);
        if (++dropped >= maxDropped)
          fail(mkErrorRemote,
               "rank %d: the hub at %s closed the connection without an answer (%s); is the unique id of a "
               "communicator that has ended?",
               hello_.rank, address_.text().c_str(), problem_.c_str());
      } else {
        problem_ = errnoText(error);
        MK_INFO(bootstrap, "rank %d: connecting to %s: %s", hello_.rank, address_.text().c_str(), problem_.c_str());
        if (error == ECONNREFUSED) {
          firstRefusal = std::min(firstRefusal, Clock::now());
          if (dropped > 0 || Clock::now() - firstRefusal >= std::chrono::milliseconds(refusedMs))
            fail(
                mkErrorRemote,
                "rank %d: nobody listens at %s, the address in the unique id; has the process that made the id, or the "
                "communicator, ended?",
                hello_.rank, address_.text().c_str());
        }
      }
      if (Clock::now() >= deadline_) tooLate("cannot reach");
      std::this_thread::sleep_until(std::min(deadline_, afterMs(pauseMs)));
      pauseMs = std::min(2 * pauseMs, maxPauseMs);
    }
  }

 private:
  [[noreturn]] void tooLate(const char* what) {
    fail(mkErrorTimeout, "rank %d: %s the hub at %s within %d ms%s%s", hello_.rank, what, address_.text().c_str(),
         timeoutMs_, problem_.empty() ? "" : "; last trouble: ", problem_.c_str());
  }

  // Nothing if the connection ended without an answer.
  std::optional<JoinedHub> talk(Fd fd) {
    FramedSocket socket(std::move(fd), maxHubMessageBytes(std::clamp(hello_.nranks, 1, maxRanks)));
    hello_.timeoutMs = static_cast<uint32_t>(timeoutMs_);
    hello_.leftMs = static_cast<uint32_t>(pollMs(Clock::now(), deadline_));
    socket.queue(encode(hello_));
    std::vector<Frame> frames;
    for (;;) {
      socket.flush();
      const auto state = socket.receive(&frames, 1);
      if (!frames.empty()) return answer(std::move(socket), frames[0]);
      if (state == FramedSocket::State::malformed)
        fail(mkErrorRemote, "rank %d: what answers at %s, the address in the unique id, is no hub: it %s", hello_.rank,
             address_.text().c_str(), socket.problem().c_str());
      if (state != FramedSocket::State::open) {
        problem_ = socket.problem();
        return std::nullopt;
      }
      const short events = socket.wantsWrite() ? POLLIN | POLLOUT : POLLIN;
      if (!waitFd(socket.fd(), events, deadline_)) tooLate("no answer from");
    }
  }

  JoinedHub answer(FramedSocket socket, const Frame& frame) {
    if (frame.type == static_cast<uint32_t>(Message::joinError)) {
      WireReader reader(frame.body);
      const uint32_t code = reader.u32();
      const std::string text = reader.text(maxTextBytes);
      if (reader.ok() && code != mkSuccess) throw Error(static_cast<mkResult_t>(code), text);
    }
    Welcome welcome;
    if (frame.type != static_cast<uint32_t>(Message::welcome) || !decode(frame.body, &welcome) ||
        welcome.peers.size() != static_cast<size_t>(hello_.nranks))
      fail(mkErrorRemote, "rank %d: the hub at %s sent an answer that cannot be read (type %u, %zu bytes)", hello_.rank,
           address_.text().c_str(), frame.type, frame.body.size());
    return {std::move(socket), std::move(welcome)};
  }

  const Address address_;
  Hello hello_;
  const int timeoutMs_;
  const TimePoint deadline_;
  std::string problem_;
};

}  // namespace

JoinedHub joinHub(const HubPlace& place, Hello hello, int timeoutMs) {
  return Joining(place, std::move(hello), timeoutMs).run();
}

}  // namespace mk
