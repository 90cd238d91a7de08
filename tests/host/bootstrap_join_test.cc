// Joining: worlds, and one clear error on every rank where it fails.
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "bootstrap_world.h"
#include "host/netif.h"
#include "support/catch_compat.h"

using test::checkSame;
using test::contains;
using test::identity;
using test::Outcome;
using test::RawRank;
using test::World;

TEST_CASE("worlds of any size and shape", "[bootstrap]") {
  const auto [nodes, perNode] = GENERATE(std::pair(1, 1), std::pair(1, 4), std::pair(3, 2), std::pair(5, 1));
  const int n = nodes * perNode;
  const int modulus = nodes;
  World world(n, {}, [&](int rank, mk::Identity& own) { own.hostId = "host" + std::to_string(rank % modulus); });
  for (int rank = 0; rank < n; ++rank) {
    CHECK(world[rank].nodes() == nodes);
    CHECK(world[rank].ranksPerNode() == perNode);
    REQUIRE(world[rank].peers().size() == static_cast<size_t>(n));
    for (int other = 0; other < n; ++other) {
      const mk::PeerInfo& peer = world[rank].peers()[static_cast<size_t>(other)];
      CHECK(peer.rank == other);
      CHECK(peer.node == other % nodes);
      CHECK(peer.localRank == other / nodes);
      CHECK(peer.pid == getpid());
      CHECK(peer.host == mk::hostName());
    }
  }
}

TEST_CASE("IPv6", "[bootstrap]") {
  mk::HubOptions options = test::localOptions();
  options.family = "inet6";
  mkUniqueId_t id;
  try {
    id = mk::startHub(options);
  } catch (const mk::Error& e) {
    MK_SKIP_TEST("no IPv6 here: %s", e.what());
  }
  CHECK(mk::decodeUniqueId(id).address.family() == AF_INET6);
  World world(3, id);
  const auto outcomes = world.all([&](int rank, Outcome&) { world[rank].agree(mkSuccess, "", "six"); });
  checkSame(outcomes, mkSuccess, {});
}

TEST_CASE("the interface that is chosen by default works", "[bootstrap]") {
  mkUniqueId_t id;
  mk::Bootstrap::createId(&id);
  World world(2, id);
}

TEST_CASE("joining waits for the last rank", "[bootstrap]") {
  const auto id = test::localId();
  std::atomic<bool> lastCame = false;
  const auto outcomes = test::inThreads(3, [&](int rank, Outcome&) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      lastCame = true;
    }
    auto bootstrap = mk::Bootstrap::join(id, identity(rank, 3), 8000, {});
    if (!lastCame) mk::fail(mkErrorInternal, "joined before rank 1 has come");
    bootstrap->agree(mkSuccess, "", "all there");
    bootstrap->depart(2000);
  });
  checkSame(outcomes, mkSuccess, {});
}

TEST_CASE("ranks that do not come are named at the deadline", "[bootstrap]") {
  const auto id = test::localId();
  const auto outcomes = test::joinAll(id, {identity(0, 5), identity(3, 5)}, 1000);
  checkSame(outcomes, mkErrorTimeout, {"3 of 5 ranks", "1000 ms", "rank 1,2,4"});
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.ms > 700);
    CHECK(outcome.ms < 4000);
  }
  // One that comes after all gets the same error, at once.
  const auto late = test::joinAll(id, {identity(4, 5)}, 8000);
  CHECK(late[0].text == outcomes[0].text);
  CHECK(late[0].code == mkErrorTimeout);
  CHECK(late[0].ms < 4000);
}

TEST_CASE("a rank given twice is an error on all at once, and on those that come later", "[bootstrap]") {
  const auto id = test::localId();
  auto outcomes = test::joinAll(id, {identity(0, 4), identity(1, 4), identity(1, 4)}, 8000);
  const auto late = test::joinAll(id, {identity(2, 4), identity(3, 4)}, 8000);
  outcomes.insert(outcomes.end(), late.begin(), late.end());
  checkSame(outcomes, mkErrorInvalidUsage, {"rank 1 was given twice", "rank 1 (host " + mk::hostName() + ", pid "});
  for (const Outcome& outcome : outcomes) CHECK(outcome.ms < 4000);
}

TEST_CASE("rank and nranks are checked", "[bootstrap]") {
  SECTION("out of range") {
    const int bad = GENERATE(-1, 2, 1000000);
    checkSame(test::joinAll(test::localId(), {identity(0, 2), identity(bad, 2)}, 8000), mkErrorInvalidUsage,
              {"rank " + std::to_string(bad) + " (", "0 to 1"});
  }
  SECTION("nranks differs") {
    const auto outcomes = test::joinAll(test::localId(), {identity(0, 3), identity(1, 4)}, 8000);
    checkSame(outcomes, mkErrorInvalidUsage, {"nranks differs", "3 on rank 0", "4 on rank 1"});
    CHECK(outcomes[0].ms < 4000);
  }
  SECTION("nranks is nonsense") {
    const int bad = GENERATE(0, -5, 1 << 20);
    checkSame(test::joinAll(test::localId(), {identity(0, bad)}, 8000), mkErrorInvalidUsage,
              {"nranks is " + std::to_string(bad), "1 to 65536"});
  }
}

TEST_CASE("settings must agree", "[bootstrap]") {
  std::vector<mk::Identity> all = {identity(0, 3), identity(1, 3), identity(2, 3)};
  all[2].settings = "heapMaxBytes=1024\nepochStart=0\nextra=1\n";
  const auto outcomes = test::joinAll(test::localId(), all, 8000);
  checkSame(outcomes, mkErrorInvalidUsage,
            {"heapMaxBytes is \"68719476736\" on rank 0 (", "and \"1024\" on rank 2 (", "extra is nothing on rank 0 (",
             "\"1\" on rank 2 ("});
  CHECK(!contains(outcomes[0].text, "epochStart"));
  // The same even where a rank is missing, at the deadline.
  all.pop_back();
  all[1].settings = "epochStart=7\n";
  checkSame(test::joinAll(test::localId(), all, 1000), mkErrorInvalidUsage, {"epochStart", "1 of 3 ranks", "rank 2"});
}

TEST_CASE("unequal ranks per node name the nodes", "[bootstrap]") {
  checkSame(test::joinAll(test::localId(),
                          {identity(0, 4, "A"), identity(1, 4, "B"), identity(2, 4, "A"), identity(3, 4, "A")}, 8000),
            mkErrorInvalidUsage, {"node 0 (host", "identity A) has 3: 0,2,3", "node 1 (host", "identity B) has 1: 1"});
}

TEST_CASE("one GPU serves one rank", "[bootstrap]") {
  std::vector<mk::Identity> all = {identity(0, 3), identity(1, 3), identity(2, 3)};
  all[0].deviceId.fill(1);
  all[1].deviceId.fill(2);
  all[2].deviceId.fill(1);
  checkSame(test::joinAll(test::localId(), all, 8000), mkErrorInvalidUsage,
            {"rank 0 (", "and rank 2 (", "same GPU", "01010101"});
}

TEST_CASE("library versions must agree", "[bootstrap]") {
  const auto id = test::localId();
  RawRank raw(id);
  mk::Hello hello = raw.hello(1, 3);
  const bool wire = GENERATE(false, true);
  hello.library = 90807;
  if (wire) hello.wire = 42;  // what follows in its hello is anything then
  std::optional<std::pair<mkResult_t, std::string>> answer;
  std::vector<Outcome> outcomes = test::inThreads(3, [&](int i, Outcome& outcome) {
    if (i < 2) {
      mk::Bootstrap::join(id, identity(2 * i, 3), 8000, {});
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    raw.send(mk::encode(hello));
    const auto frame = raw.receive();
    if (!frame.has_value()) return;
    std::tie(outcome.code, outcome.text) = test::errorOf(*frame);
  });
  checkSame(outcomes, mkErrorVersion,
            {"rank 1 (host rawhost", "version 9.8.7 (bootstrap " + std::to_string(wire ? 42 : mk::wireVersion) + ")",
             mk::format("version %d.%d.%d (bootstrap %u)", MK_MAJOR, MK_MINOR, MK_PATCH, mk::wireVersion)});
}

TEST_CASE("a rank that dies while the others join is named at once", "[bootstrap]") {
  const auto id = test::localId();
  const auto outcomes = test::inThreads(3, [&](int i, Outcome&) {
    if (i < 2) {
      mk::Bootstrap::join(id, identity(i, 4), 8000, {});
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    {
      RawRank raw(id);
      raw.send(mk::encode(raw.hello(2, 4)));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    mk::Bootstrap::join(id, identity(3, 4), 8000, {});
  });
  checkSame(outcomes, mkErrorRemote, {"rank 2 (host rawhost", "during initialisation"});
  for (const Outcome& outcome : outcomes) CHECK(outcome.ms < 4000);
}

TEST_CASE("a hub that is not there", "[bootstrap]") {
  mk::Address bound;
  mk::Fd listener;
  {
    const auto interfaces = mk::listInterfaces();
    listener = mk::listenStream(mk::chooseInterface(interfaces, "lo", "inet").address, &bound);
  }
  const mkUniqueId_t id = mk::encodeUniqueId({mk::randomSecret(), bound});
  SECTION("nobody listens") {
    listener.reset();
    auto outcomes = test::joinAll(id, {identity(0, 2)}, 500);
    checkSame(outcomes, mkErrorTimeout, {"rank 0", bound.text(), "500 ms", "refused"});
    CHECK(outcomes[0].ms < 4000);
    outcomes = test::joinAll(id, {identity(0, 2)}, 60000);
    checkSame(outcomes, mkErrorRemote, {"rank 0", "nobody listens at " + bound.text()});
    CHECK(outcomes[0].ms < 4000);
  }
  SECTION("silence") {
    const auto outcomes = test::joinAll(id, {identity(1, 2)}, 400);
    checkSame(outcomes, mkErrorTimeout, {"rank 1", "no answer", bound.text(), "400 ms"});
    CHECK(outcomes[0].ms >= 390);
    CHECK(outcomes[0].ms < 4000);
  }
  SECTION("something else") {
    std::atomic<bool> stop = false;
    std::thread server([&] {
      while (!stop) {
        mk::Address peer;
        int error = 0;
        mk::Fd fd = mk::Fd::accept(listener.get(), &peer, &error);
        if (fd) [[maybe_unused]]
          const ssize_t n = send(fd.get(), "SSH-2.0-OpenSSH\r\n", 17, MSG_NOSIGNAL);
        mk::waitFd(listener.get(), POLLIN, mk::afterMs(20));
      }
    });
    const auto outcomes = test::joinAll(id, {identity(1, 2)}, 3000);
    stop = true;
    server.join();
    // Depending on timing its bytes are seen, or only that it hangs up.
    CHECK(outcomes[0].code == mkErrorRemote);
    CHECK(contains(outcomes[0].text, bound.text()));
    CHECK(outcomes[0].ms < 4000);
  }
}

TEST_CASE("the hub of another communicator", "[bootstrap]") {
  const auto place = mk::decodeUniqueId(test::localId());
  const auto outcomes = test::joinAll(mk::encodeUniqueId({mk::randomSecret(), place.address}), {identity(0, 2)}, 10000);
  checkSame(outcomes, mkErrorRemote, {"rank 0", place.address.text(), "closed the connection without an answer"});
  CHECK(outcomes[0].ms < 4000);
}

TEST_CASE("a rank too many comes to a complete communicator", "[bootstrap]") {
  const auto id = test::localId();
  World world(2, id);
  const auto outcomes = test::joinAll(id, {identity(1, 2)}, 5000);
  checkSame(outcomes, mkErrorInvalidUsage, {"rank 1 (", "complete", "unique id of its own"});
  CHECK(outcomes[0].ms < 4000);
  checkSame(world.all([&](int rank, Outcome&) { world[rank].agree(mkSuccess, "", "still well"); }), mkSuccess, {});
}

TEST_CASE("a hub nobody comes to ends", "[bootstrap]") {
  mk::stopHubs();
  mk::HubOptions options = test::localOptions();
  options.initTimeoutMs = 100;
  mk::startHub(options);
  CHECK(mk::reapHubs() == 1);
  const auto deadline = mk::afterMs(2000);
  while (mk::reapHubs() > 0 && mk::Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(mk::reapHubs() == 0);
}
