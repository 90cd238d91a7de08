// Descriptors, and the connections between endpoints: local sockets that carry whole messages and descriptors.  Each
// endpoint has one connection to every peer for what it has to tell, and one from every peer; nothing here blocks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "common/token.h"
#include "common/unique_fd.h"
#include "mkernel/transport.h"

namespace mk::plugin::loopback {

constexpr uint32_t kMagic = 0x6d6b4c42;  // "mkLB"
constexpr uint32_t kWireVersion = 2;

// What open() hands out: where an endpoint listens, and the secret that proves a caller has it from the endpoint itself.
struct Address {
  uint32_t magic, version;
  uint32_t contract, reserved;
  int64_t pid;
  Token id;       // names the endpoint
  Token secret;   // sent by whoever connects
  char name[64];  // of the abstract socket
};
static_assert(sizeof(Address) <= MK_TRANSPORT_ADDRESS_BYTES);

// What registerMemory hands out.
struct Key {
  uint32_t magic;
  uint32_t hasFd;
  Token endpoint;
  uint64_t sequence;  // of the registration, among the endpoint's
  uint64_t bytes;
  uint32_t kind, reserved;  // of the memory
};
static_assert(sizeof(Key) <= MK_TRANSPORT_KEY_BYTES);

enum class MessageType : uint32_t {
  hello = 1,     // who connects; carries the arrival ring to be written by the receiver
  region = 2,    // a registration; carries its descriptor
  withdraw = 3,  // the end of a registration
};
struct Message {
  uint32_t magic;
  MessageType type;
  Token secret, sender;  // hello
  int32_t index, count;  // hello: the sender's index, of how many
  uint64_t sequence;     // region, withdraw
  uint64_t bytes, fdOffset;
  uint32_t slots;  // hello: of the ring
  uint32_t kind;   // region: of the memory
};
Message makeMessage(MessageType type);

class Connection {
 public:
  Connection() = default;
  explicit Connection(UniqueFd fd) : fd_(std::move(fd)) {}

  // fd -1: none.  What the socket does not take now is kept, with a duplicate of fd, for flush.
  void send(const Message& message, int fd);
  void flush();
  bool backlogged() const { return !backlog_.empty(); }

  enum class Received { nothing, message, ended, malformed };
  // A descriptor that should have come with the message, but found no place in this process, leaves *fd empty.
  Received receive(Message* message, UniqueFd* fd);

  int fd() const { return fd_.get(); }
  bool open() const { return static_cast<bool>(fd_); }
  void close();

 private:
  enum class Sent { done, later, broken };
  Sent sendNow(const Message& message, int fd);

  UniqueFd fd_;
  std::deque<std::pair<Message, UniqueFd>> backlog_;
};

// Listens on the abstract name; the socket does not block.
UniqueFd listenOn(const std::string& name);
// errno 0: connected; EAGAIN: the listener's queue is full just now.
int connectTo(const std::string& name, UniqueFd* fd);
// Whether the other end of a connection runs as the same user; its process id for messages.
bool sameUser(int fd, pid_t* pid);

}  // namespace mk::plugin::loopback
