// What endpoints say to each other beside the fabric: a TCP connection per pair.  It carries who is there, what is
// registered, how many arrivals may still come, and the end: of an endpoint by a message, of a process by the connection's.
// Nothing here blocks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/token.h"
#include "common/unique_fd.h"
#include "mkernel/transport.h"

namespace mk::plugin::efa {

// IPv6, or IPv4 as IPv6 maps it.
using HostAddress = std::array<uint8_t, 16>;
std::string text(const HostAddress& address);

constexpr uint32_t kMagic = 0x6d6b4641;  // "mkFA"
constexpr uint32_t kWireVersion = 1;
constexpr size_t kHostAddresses = 4;
constexpr size_t kFabricNameBytes = 104;

// What open() hands out.
struct Address {
  uint32_t magic, version;
  Token id;      // names the endpoint
  Token secret;  // sent by whoever connects
  char provider[24];
  uint32_t port;
  uint16_t hosts, nameBytes;
  uint8_t senderInData;
  uint8_t reserved[7];
  HostAddress host[kHostAddresses];  // where it listens, the likeliest first
  uint8_t name[kFabricNameBytes];    // in the provider's format
};
static_assert(sizeof(Address) <= MK_TRANSPORT_ADDRESS_BYTES);

enum class MessageType : uint32_t {
  hello = 1,   // who connects; a: index, b: count of the endpoints
  ready,       // it knows all addresses; a, b: address and key of its landing pad, c: arrivals it has room for
  registered,  // a: sequence
  withdrawn,   // a: sequence
  credit,      // a: arrivals it has room for, since the beginning
  goodbye,     // it posts nothing any more, and closes once it has heard farewell
  farewell,    // nothing is under way to whoever has said goodbye
};
struct Message {
  uint32_t magic;
  MessageType type;
  Token secret, sender;  // hello: the receiver's secret, the sender's id; ready: the receiver's secret
  uint64_t a, b, c;
};
Message makeMessage(MessageType type, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0);

class Connection {
 public:
  Connection() = default;
  explicit Connection(UniqueFd fd) : fd_(std::move(fd)) {}

  // What the socket does not take now is kept for flush.  An end shows in receive.
  void send(const Message& message);
  void flush();

  enum class Received { nothing, message, ended, malformed };
  Received receive(Message* message);

  int fd() const { return fd_.get(); }
  bool open() const { return static_cast<bool>(fd_); }
  bool backlogged() const { return !out_.empty(); }
  void close();

 private:
  UniqueFd fd_;
  std::string out_;
  std::array<char, sizeof(Message)> in_ = {};
  size_t have_ = 0;
};

// A socket on all interfaces, and its port.
UniqueFd listenAnywhere(uint32_t* port);
// Where this machine may be reached, the likeliest first.
std::vector<HostAddress> ownAddresses();
// Begins to connect; an empty result: errno tells why not.  The socket becomes writable once it is known.
UniqueFd beginConnect(const HostAddress& host, uint32_t port);
// 0: connected; EINPROGRESS; another errno: not to be had.
int connectState(int fd);
// A connection that waits for the next caller, or an empty one.
UniqueFd acceptOne(int listener);

}  // namespace mk::plugin::efa
