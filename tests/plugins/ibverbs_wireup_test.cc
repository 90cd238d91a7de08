// How ibverbs endpoints tell each other of their connections, over a network that loses, repeats and reorders.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/catch_compat.h"
#include "wireup.h"
#include "words.h"

using namespace mk::plugin;
using namespace mk::plugin::ibverbs;
using namespace std::chrono_literals;

namespace {

// Boxes of messages.
class Network {
 public:
  Network(int count, int lossPercent) : boxes_(static_cast<size_t>(count)), loss_(lossPercent) {}

  void send(int to, const Hello& hello) {
    const std::lock_guard lock(mutex_);
    const uint64_t times = random_() % 4 == 0 ? 2 : 1;  // repeated
    for (uint64_t i = 0; i < times; ++i) {
      if (static_cast<int>(random_() % 100) < loss_) continue;
      Box& box = boxes_[static_cast<size_t>(to)];
      if (random_() % 2 == 0)
        box.messages.push_back(hello);
      else
        box.messages.push_front(hello);
    }
    changed_.notify_all();
  }
  bool receive(int self, Hello* hello) {
    const std::lock_guard lock(mutex_);
    Box& box = boxes_[static_cast<size_t>(self)];
    if (box.messages.empty()) return false;
    *hello = box.messages.front();
    box.messages.pop_front();
    return true;
  }
  void wait(int self, int ms) {
    std::unique_lock lock(mutex_);
    Box& box = boxes_[static_cast<size_t>(self)];
    const auto ready = [&] { return box.woken || !box.messages.empty(); };
    if (ms < 0)
      changed_.wait(lock, ready);
    else
      changed_.wait_for(lock, std::chrono::milliseconds(ms), ready);
    box.woken = false;
  }
  void wake(int self) {
    const std::lock_guard lock(mutex_);
    boxes_[static_cast<size_t>(self)].woken = true;
    changed_.notify_all();
  }
  void setLoss(int percent) {
    const std::lock_guard lock(mutex_);
    loss_ = percent;
  }

 private:
  struct Box {
    std::deque<Hello> messages;
    bool woken = false;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Box> boxes_;
  std::mt19937_64 random_{11};
  int loss_;
};

class Plug final : public Datagrams {
 public:
  Plug(Network& network, int self) : network_(network), self_(self) {}
  bool send(int peer, const Hello& hello) override {
    if (++sends_ % 5 == 0) return false;  // no room just now
    network_.send(peer, hello);
    return true;
  }
  bool receive(Hello* hello) override { return network_.receive(self_, hello); }
  void wait(int ms) override { network_.wait(self_, ms); }
  void wake() override { network_.wake(self_); }

 private:
  Network& network_;
  const int self_;
  int sends_ = 0;
};

struct World {
  World(int count, int lossPercent) : network(count, lossPercent) {
    for (int i = 0; i < count; ++i) ids.push_back(randomToken()), secrets.push_back(randomToken());
  }
  std::unique_ptr<Wireup> start(int self) {
    std::vector<WireupPeer> peers(ids.size());
    for (size_t i = 0; i < peers.size(); ++i) {
      peers[i].id = ids[i];
      peers[i].secret = secrets[i];
      peers[i].hello.words = static_cast<uint64_t>(self) * 100 + i;  // what `self` has to tell i
    }
    const auto me = static_cast<size_t>(self);
    return std::make_unique<Wireup>(std::make_unique<Plug>(network, self), ids[me], secrets[me], self, peers);
  }
  Network network;
  std::vector<Token> ids, secrets;
};

// Hears all peers, once each, and says so; returns what it was told, by peer.
std::vector<uint64_t> connectAll(Wireup& wireup, size_t count, Clock::time_point deadline) {
  std::vector<uint64_t> told(count, 0);
  for (size_t left = count - 1; left > 0; --left) {
    int peer = -1;
    Hello hello = {};
    if (!wireup.next(deadline, &peer, &hello)) break;
    told[static_cast<size_t>(peer)] += hello.words;
    wireup.markReady(peer);
  }
  return told;
}

}  // namespace

TEST_CASE("ibverbs: wire-up over a bad network") {
  const int count = GENERATE(2, 5);
  const int loss = GENERATE(0, 40);
  World world(count, loss);
  const auto deadline = Clock::now() + 30s;
  std::vector<std::vector<uint64_t>> told(static_cast<size_t>(count));
  std::vector<char> done(static_cast<size_t>(count));
  std::vector<std::unique_ptr<Wireup>> wireups(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      const auto me = static_cast<size_t>(i);
      if (i == 1) std::this_thread::sleep_for(100ms);  // late
      wireups[me] = world.start(i);
      told[me] = connectAll(*wireups[me], world.ids.size(), deadline);
      done[me] = wireups[me]->waitAll(deadline) ? 1 : 0;
    });
  }
  // Endpoints that have finished do nothing more by themselves, and yet the others finish.
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < count; ++i) {
    INFO("endpoint " << i << ": " << wireups[static_cast<size_t>(i)]->missing());
    CHECK(done[static_cast<size_t>(i)] == 1);
    for (int from = 0; from < count; ++from)
      if (from != i)
        CHECK(told[static_cast<size_t>(i)][static_cast<size_t>(from)] == static_cast<uint64_t>(from * 100 + i));
  }
}

TEST_CASE("ibverbs: wire-up with a peer that does not come, or does not finish") {
  World world(3, 0);
  const auto first = world.start(0), second = world.start(1);
  int peer = -1;
  Hello hello = {};
  REQUIRE(first->next(Clock::now() + 20s, &peer, &hello));
  CHECK(peer == 1);
  first->markReady(1);
  CHECK_FALSE(first->next(Clock::now() + 50ms, &peer, &hello));  // it is returned once, and the third has not come
  CHECK_FALSE(first->waitAll(Clock::now() + 50ms));
  CHECK(test::missing(first->missing(), {"peer 1 has not finished connecting", "peer 2 has not been heard of"}) == "");
}

TEST_CASE("ibverbs: wire-up takes nothing from strangers") {
  World world(3, 0);
  const auto wireup = world.start(0);
  Hello forged = {};
  forged.magic = kMagic;
  forged.version = kWireVersion;
  forged.receiver = world.secrets[0];
  forged.sender = world.ids[1];
  forged.ready = 1;
  const auto sendSpoilt = [&](auto&& spoil) {
    Hello spoilt = forged;
    spoil(spoilt);
    world.network.send(0, spoilt);
  };
  sendSpoilt([](Hello& h) { h.magic ^= 1; });
  sendSpoilt([](Hello& h) { h.version += 1; });
  sendSpoilt([](Hello& h) { h.receiver[3] ^= 1; });
  sendSpoilt([](Hello& h) { h.sender[3] ^= 1; });
  sendSpoilt([&](Hello& h) { h.sender = world.ids[0]; });
  int peer = -1;
  Hello hello = {};
  CHECK_FALSE(wireup->next(Clock::now() + 100ms, &peer, &hello));
  world.network.send(0, forged);
  CHECK(wireup->next(Clock::now() + 20s, &peer, &hello));
  CHECK(peer == 1);
}
