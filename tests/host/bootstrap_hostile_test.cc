// Strangers at the hub's door: they are dropped and logged, and the ranks do not notice.
#include <chrono>
#include <thread>

#include "bootstrap_world.h"
#include "support/catch_compat.h"

using test::checkSame;
using test::contains;
using test::identity;
using test::Outcome;
using test::RawRank;
using test::World;

namespace {

std::string header(uint32_t magic, uint32_t type, uint32_t length) {
  std::string bytes;
  for (const uint32_t word : {magic, type, length})
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(word >> (8 * i));
  return bytes;
}

std::string helloHeader(uint32_t length) {
  return header(mk::frameMagic, static_cast<uint32_t>(mk::Message::hello), length);
}

void checkWorks(World& world) {
  const auto outcomes = world.all([&](int rank, Outcome&) {
    for (int i = 0; i < 5; ++i) world[rank].agree(mkSuccess, "", "works");
  });
  checkSame(outcomes, mkSuccess, {});
  for (int rank = 0; rank < world.size(); ++rank) CHECK(!world.recorder(rank).verdict(0).has_value());
}

}  // namespace

TEST_CASE("each kind of stray connection is dropped and logged", "[bootstrap]") {
  struct Stray {
    const char* name;
    std::string bytes;
    const char* logged;
  };
  const Stray strays[] = {
      {"another protocol", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "no message of this library"},
      {"wrong secret", helloHeader(100) + std::string(16, 'x'), "does not know the secret"},
      {"wrong secret, whole", helloHeader(20) + std::string(20, 'x'), "does not know the secret"},
      {"huge", helloHeader(0xffffffffu), "announced a message of 4294967295 bytes"},
      {"another message", header(mk::frameMagic, 9, 4), "another message than hello"},
      {"empty hello", helloHeader(0), "cannot be read"},
  };
  test::CaptureStderr capture;
  mk::HubOptions options = test::localOptions();
  options.strangerMs = 400;
  const auto id = mk::startHub(options);
  const mk::Secret secret = mk::decodeUniqueId(id).secret;
  std::vector<std::string> addresses;
  for (const Stray& stray : strays) {
    RawRank raw(id);
    addresses.push_back(raw.ownAddress());
    raw.sendBytes(stray.bytes);
    INFO(stray.name);
    CHECK(raw.ended(2000));
    CHECK(
        contains(capture.text(), raw.ownAddress() + ": it " + (stray.logged[0] == 'n' ? "sent bytes that are " : "")));
    CHECK(contains(capture.text(), stray.logged));
  }
  {
    // The right secret, and garbage behind it.
    RawRank raw(id);
    std::string bytes = helloHeader(40) + std::string(secret.begin(), secret.end()) + std::string(24, '\xff');
    bytes[12 + 16] = 1;  // the wire version, so that the rest is read
    bytes[12 + 17] = bytes[12 + 18] = bytes[12 + 19] = 0;
    raw.sendBytes(bytes);
    CHECK(raw.ended(2000));
    CHECK(contains(capture.text(), raw.ownAddress() + ": it sent a hello that cannot be read"));
  }
  {
    RawRank silent(id);
    const auto start = mk::Clock::now();
    CHECK(silent.ended(2000));
    CHECK(mk::Clock::now() - start > std::chrono::milliseconds(300));
    CHECK(contains(capture.text(), silent.ownAddress() + ": it did not identify itself in time"));
  }
  std::string hasty;
  hasty = RawRank(id).ownAddress();
  World world(2, id);
  checkWorks(world);
  CHECK(contains(capture.text(), hasty + ": it closed without identifying itself"));
  // The secret is nobody's business.
  CHECK(!contains(capture.text(), std::string(secret.begin(), secret.end())));
}

TEST_CASE("a slow stranger has a deadline for the whole hello", "[bootstrap]") {
  mk::HubOptions options = test::localOptions();
  options.strangerMs = 500;
  const auto id = mk::startHub(options);
  test::CaptureStderr capture;
  RawRank raw(id);
  const mk::FrameBytes hello = mk::encode(raw.hello(0, 1));
  const auto start = mk::Clock::now();
  bool ended = false;
  for (size_t i = 0; i < hello->size() && !ended; ++i) {
    raw.sendBytes(std::string(1, static_cast<char>((*hello)[i])));
    ended = raw.ended(20);
  }
  CHECK(ended);
  const auto ms = std::chrono::duration<double, std::milli>(mk::Clock::now() - start).count();
  CHECK(ms > 400);
  CHECK(ms < 3500);
}

TEST_CASE("too many strangers: the oldest give way", "[bootstrap]") {
  test::CaptureStderr capture;
  mk::HubOptions options = test::localOptions();
  options.maxStrangers = 4;
  const auto id = mk::startHub(options);
  std::vector<std::unique_ptr<RawRank>> silent;
  for (int i = 0; i < 6; ++i) silent.push_back(std::make_unique<RawRank>(id));
  CHECK(silent[0]->ended(1000));
  CHECK(silent[1]->ended(1000));
  for (size_t i = 2; i < 6; ++i) CHECK(!silent[i]->ended(10));
  CHECK(contains(capture.text(), silent[0]->ownAddress() + ": it gave way"));
  World world(3, id);
  checkWorks(world);
}

TEST_CASE("strangers do not disturb the ranks, during and after joining", "[bootstrap]") {
  test::CaptureStderr capture;
  const auto id = test::localId();
  std::atomic<bool> stop = false;
  std::atomic<int> connections = 0;
  std::vector<std::thread> strangers;
  std::vector<std::string> troubles(2);
  for (size_t kind = 0; kind < 2; ++kind)
    strangers.emplace_back([&, kind] {
      std::vector<std::unique_ptr<RawRank>> open;
      try {
        while (!stop) {
          auto raw = std::make_unique<RawRank>(id);
          ++connections;
          if (kind == 0)
            raw->sendBytes(connections % 2 == 0 ? "garbage" : helloHeader(1 << 30));
          else
            open.push_back(std::move(raw));  // silent
          if (open.size() > 200) open.erase(open.begin(), open.begin() + 100);
        }
      } catch (const std::exception& e) {
        troubles[kind] = e.what();
      }
    });
  const auto deadline = mk::afterMs(10000);
  // More silent ones than the hub keeps.
  while (connections < 300 && mk::Clock::now() < deadline) std::this_thread::yield();
  {
    World world(3, id);
    while (connections < 2000 && mk::Clock::now() < deadline) checkWorks(world);
    const auto outcomes = world.all([&](int rank, Outcome& outcome) {
      if (!world[rank].depart(5000).empty()) outcome.code = mkErrorInternal;
    });
    stop = true;
    for (std::thread& thread : strangers) thread.join();
    checkSame(outcomes, mkSuccess, {});
  }
  mk::stopHubs();  // its last line tells how many are not told singly
  const std::string log = capture.text();
  CHECK(connections >= 2000);
  CHECK(contains(log, "more stray connections"));
  CHECK(log.size() < 100000);
  INFO(troubles[0] << troubles[1]);
  for (const std::string& trouble : troubles)
    // They may meet the end of the hub.
    CHECK((trouble.empty() || contains(trouble, "refused") || contains(trouble, "reset")));
}

TEST_CASE("a rank that breaks the protocol is dropped like a dead one", "[bootstrap]") {
  test::CaptureStderr capture;
  const auto id = test::localId();
  RawRank raw(id);
  raw.send(mk::encode(raw.hello(1, 3)));
  std::vector<test::Recorder> recorders(2);
  std::vector<std::unique_ptr<mk::Bootstrap>> ranks(2);
  test::inThreads(2, [&](int i, Outcome&) {
    ranks[static_cast<size_t>(i)] =
        mk::Bootstrap::join(id, identity(2 * i, 3), 5000, recorders[static_cast<size_t>(i)].events());
  });
  REQUIRE(raw.receive().has_value());
  const int kind = GENERATE(0, 1, 2, 3, 4, 5);
  switch (kind) {
    case 0:
      raw.sendBytes("garbage in the middle");
      break;
    case 1:
      raw.sendBytes(header(mk::frameMagic, 4, 100 << 20));
      break;
    case 2:
      raw.send(mk::encodeEmpty(static_cast<mk::Message>(1000)));
      break;
    case 3:
      raw.send(mk::encodeRank(mk::Message::letGo, 17));
      break;
    case 4:
      raw.send(mk::encodeEmpty(mk::Message::goodbye));
      break;  // without leave
    default: {
      mk::Contribution c;
      c.sequence = 5;
      raw.send(mk::encode(c));
    }
  }
  for (test::Recorder& recorder : recorders) {
    const auto verdict = recorder.verdict(2000);
    REQUIRE(verdict.has_value());
    CHECK(verdict->first == mkErrorRemote);
    CHECK(contains(verdict->second, "rank 1 (host rawhost"));
  }
}
