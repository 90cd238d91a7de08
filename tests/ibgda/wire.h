// What joins the software network cards of several processes: a write goes to the card of the other process over a socket, and
// is carried out and answered there.  A process that has died gives no answer, at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <vector>

namespace test {

class Wire {
 public:
  struct Packet {
    uint32_t fromCard, from;  // who writes: card and queue pair
    uint32_t to;              // queue pair
    uint32_t key;
    uint64_t address, bytes;
  };
  // Carries out what comes from another card; the answer is a syndrome, 0 for success.  On the wire's thread.
  using Deliver = std::function<uint8_t(const Packet&, const char* bytes)>;

  // A card has the number of its process.
  Wire(uint32_t card, Deliver deliver);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // False: there is no answer.  One thread at a time.
  bool send(uint32_t card, const Packet& packet, const char* bytes, uint8_t* syndrome);

 private:
  void listen();
  bool serve(int socket, std::vector<char>& bytes);

  const Deliver deliver_;
  int listener_ = -1;
  std::map<uint32_t, int> connections_;  // by card; of send()
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace test
