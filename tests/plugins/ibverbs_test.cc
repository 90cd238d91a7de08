// The ibverbs transport's decisions and bookkeeping, which need no device: what two ports agree on, how memory is registered,
// what a batch becomes and what a completion stands for.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/failure.h"
#include "common/rdma_path.h"
#include "gids.h"
#include "host_values.h"
#include "memory.h"
#include "plugin.h"
#include "requests.h"
#include "settings.h"
#include "support/catch_compat.h"
#include "words.h"

using namespace mk::plugin;
using namespace mk::plugin::ibverbs;
using test::failureOf;
using test::gidOf;
using test::ipv4;
using test::kGlobal;
using test::missing;

TEST_CASE("ibverbs, ibgda: what two ports agree on") {
  PortAddress own = {};
  own.gid = ipv4(10, 0, 0, 1);
  own.ethernet = 1;
  own.gidKind = GidKind::roceV2;
  own.mtu = IBV_MTU_4096;
  PortAddress peer = own;
  peer.gid = ipv4(10, 0, 1, 1);
  peer.mtu = IBV_MTU_1024;
  for (const RdmaPath& path : {agree(own, peer), agree(peer, own)}) {
    CHECK(path.mtu == IBV_MTU_1024);
    CHECK(path.global);
  }
  PortAddress other = peer;
  other.gidKind = GidKind::roceV1;
  CHECK(missing(failureOf(mkErrorTransport, [&] { agree(own, other); }),
                {"RoCE v2 at 10.0.0.1", "RoCE v1 at 10.0.1.1", "MKERNEL_IB_GID_INDEX"}) == "");
  other = peer;
  other.gid = kGlobal;
  CHECK(missing(failureOf(mkErrorTransport, [&] { agree(own, other); }), {"IPv4 and IPv6", "2001:db8::1"}) == "");
  other = peer;
  other.ethernet = 0;
  other.lid = 17;
  CHECK(missing(failureOf(mkErrorTransport, [&] { agree(own, other); }), {"InfiniBand", "LID 17"}) == "");
  for (const uint8_t code : {0, 6, 255}) {
    other = peer;
    other.mtu = code;
    CHECK(missing(failureOf(mkErrorTransport, [&] { agree(own, other); }), {std::to_string(code)}) == "");
  }
  // InfiniBand: a global header only where a router or the port wants one.
  own.ethernet = peer.ethernet = 0;
  own.gidKind = peer.gidKind = GidKind::infiniband;
  own.gid = gidOf({0xfe, 0x80}, {1});
  peer.gid = gidOf({0xfe, 0x80}, {2});
  CHECK_FALSE(agree(own, peer).global);
  peer.needGlobal = 1;
  CHECK(agree(own, peer).global);
  peer.needGlobal = 0;
  peer.gid = gidOf({0xfe, 0x80, 0, 0, 0, 0, 0, 1}, {2});
  CHECK(agree(own, peer).global);
  CHECK(mtuBytes(IBV_MTU_256) == 256);
  CHECK(mtuBytes(IBV_MTU_4096) == 4096);
}

TEST_CASE("ibverbs, ibgda: the route to a peer") {
  PortAddress peer = {};
  peer.gid = gidOf({0xfe, 0x80}, {2});
  peer.lid = 17;
  RdmaSettings settings;
  settings.serviceLevel = 3;
  settings.trafficClass = 106;
  const ibv_ah_attr near = routeTo(peer, false, 2, 5, settings);
  CHECK(near.is_global == 0);
  CHECK(near.dlid == 17);
  CHECK(near.sl == 3);
  CHECK(near.port_num == 2);
  const ibv_ah_attr far = routeTo(peer, true, 2, 5, settings);
  CHECK(far.is_global == 1);
  CHECK(far.dlid == 17);
  CHECK(std::equal(peer.gid.begin(), peer.gid.end(), far.grh.dgid.raw));
  CHECK(far.grh.sgid_index == 5);
  CHECK(far.grh.traffic_class == 106);
  CHECK(far.grh.hop_limit > 1);
}

TEST_CASE("ibverbs: settings") {
  const mkTransportHost_t host = test::hostOfValues();
  test::hostValues = {};
  CHECK(readSettings(host).connections == Settings{}.connections);
  test::hostValues = {{"MKERNEL_IB_HCA", "=rxe1"},
                      {"MKERNEL_IB_GID_INDEX", "3"},
                      {"MKERNEL_IB_CONNECTIONS", "8"},
                      {"MKERNEL_IB_RELAXED_ORDERING", "0"}};
  const Settings read = readSettings(host);
  CHECK(read.hca == "=rxe1");
  CHECK(read.gidIndex == 3);
  CHECK(read.connections == 8);
  CHECK_FALSE(read.relaxedOrdering);
  for (const auto& [name, value] : std::map<std::string, std::string>{{"MKERNEL_IB_GID_INDEX", "-2"},
                                                                      {"MKERNEL_IB_CONNECTIONS", "0"},
                                                                      {"MKERNEL_IB_OUTSTANDING", "many"},
                                                                      {"MKERNEL_IB_TIMEOUT", "31"},
                                                                      {"MKERNEL_IB_RETRY_COUNT", "7"},
                                                                      {"MKERNEL_IB_SL", "16"},
                                                                      {"MKERNEL_IB_TC", "256"},
                                                                      {"MKERNEL_IB_RELAXED_ORDERING", "2"}}) {
    test::hostValues = {{name, value}};
    CHECK(missing(failureOf(mkErrorInvalidArgument, [&] { readSettings(host); }), {name + "=" + value, "from"}) == "");
  }
}

// ---- Memory --------------------------------------------------------------------------------------------------------

namespace {

// Refuses what it is told to, and remembers what it has been asked for.
class FakeRegistrar final : public Registrar {
 public:
  bool dmaBufs = true, addresses = true;
  int exported = -1;  // the driver's descriptor, if it has one to give; the only one that is taken, then
  int most = 100;
  struct Made {
    bool dmaBuf;
    int access;
  };
  std::vector<Made> made;
  int left = 0;

  std::string device() const override { return "fake_0"; }
  ibv_mr* ofAddress(void*, uint64_t, int access) override { return make(addresses, {false, access}); }
  ibv_mr* ofDmaBuf(int fd, uint64_t offset, uint64_t, uint64_t, int access) override {
    if (exported >= 0) return make(fd == exported && offset == 64, {true, access});
    return make(dmaBufs, {true, access});
  }
  DmaBuf exportDmaBuf(void*, uint64_t) override {
    DmaBuf result;
    result.why = "the fake has none";
    if (exported < 0) return result;
    result.fd = UniqueFd(exported);
    result.offset = 64;
    return result;
  }
  void release(ibv_mr* registration) override {
    --left;
    delete registration;
  }

 private:
  ibv_mr* make(bool possible, const Made& what) {
    errno = EOPNOTSUPP;
    if (!possible || left == most) return nullptr;
    made.push_back(what);
    ++left;
    auto* const registration = new ibv_mr{};
    registration->lkey = static_cast<uint32_t>(made.size());
    registration->rkey = 100 + registration->lkey;
    return registration;
  }
};

}  // namespace

TEST_CASE("ibverbs: how memory is registered") {
  char bytes[64];
  mkTransportMemory_t memory = {};
  memory.structSize = sizeof(memory);
  memory.kind = MK_MEMORY_KIND_HOST;
  memory.address = bytes;
  memory.bytes = sizeof(bytes);
  memory.fd = 5;
  FakeRegistrar registrar;
  constexpr int kRelaxed = IBV_ACCESS_RELAXED_ORDERING;
  const auto relaxed = [&](size_t i) { return (registrar.made[i].access & kRelaxed) != 0; };
  SECTION("host memory goes by its address, once for flags and once for payload") {
    const auto made = registerWith(registrar, memory, true);
    REQUIRE(registrar.made.size() == 2);
    CHECK_FALSE(registrar.made[0].dmaBuf);
    CHECK_FALSE(registrar.made[1].dmaBuf);
    CHECK_FALSE(relaxed(0));
    CHECK(relaxed(1));
    CHECK(made->flagKey == 101);
    CHECK(made->payloadKey == 102);
    CHECK(made->readKey == 2);
  }
  SECTION("without relaxed ordering, once") {
    const auto made = registerWith(registrar, memory, false);
    REQUIRE(registrar.made.size() == 1);
    CHECK_FALSE(relaxed(0));
    CHECK(made->payloadKey == 101);
  }
  SECTION("where the second is refused, the first is for both") {
    registrar.most = 1;
    CHECK(registerWith(registrar, memory, true)->payloadKey == 101);
  }
  SECTION("host memory that is refused") {
    registrar.addresses = false;
    CHECK(missing(failureOf(mkErrorSystem, [&] { registerWith(registrar, memory, true); }), {"fake_0", "64 bytes"}) ==
          "");
  }
  SECTION("GPU memory: DMA-BUF") {
    memory.kind = MK_MEMORY_KIND_CUDA;
    const auto made = registerWith(registrar, memory, true);
    REQUIRE(registrar.made.size() == 2);
    CHECK(registrar.made[0].dmaBuf);
    CHECK(registrar.made[1].dmaBuf);
    CHECK(std::string(made->way) == "DMA-BUF");
  }
  SECTION("GPU memory: a DMA-BUF of the driver's where the descriptor is none") {
    memory.kind = MK_MEMORY_KIND_CUDA;
    memory.fd = GENERATE(-1, 5);
    registrar.exported = dup(STDIN_FILENO);
    REQUIRE(registrar.exported >= 0);
    const auto made = registerWith(registrar, memory, true);
    REQUIRE(registrar.made.size() == 2);
    CHECK(registrar.made[0].dmaBuf);
    CHECK(relaxed(1));
    CHECK(std::string(made->way) == "DMA-BUF of the driver");
    CHECK(fcntl(registrar.exported, F_GETFD) == -1);  // closed
  }
  SECTION("GPU memory: peer memory where DMA-BUF is refused, or there is none") {
    memory.kind = MK_MEMORY_KIND_CUDA;
    const bool given = GENERATE(true, false);
    registrar.dmaBufs = !given;
    if (!given) memory.fd = -1;
    const auto made = registerWith(registrar, memory, true);
    REQUIRE(registrar.made.size() == 2);
    CHECK_FALSE(registrar.made[0].dmaBuf);
    CHECK_FALSE(registrar.made[1].dmaBuf);
    CHECK(std::string(made->way) == "peer memory");
  }
  SECTION("GPU memory: neither") {
    memory.kind = MK_MEMORY_KIND_CUDA;
    registrar.dmaBufs = registrar.addresses = false;
    CHECK(missing(failureOf(mkErrorNotSupported, [&] { registerWith(registrar, memory, true); }),
                  {"fake_0", "DMA-BUF: ", "DMA-BUF of the driver: the fake has none",
                   "peer memory: ", "pinned host memory"}) == "");
  }
  CHECK(registrar.left == 0);
}

// ---- Requests ------------------------------------------------------------------------------------------------------

namespace {

WirePlan planOf(uint64_t i, uint64_t bytes) {
  return {1000 + i, 2000 + i, bytes, 3, 4, 8 * i, 0x0123456789abcdefu + i, 5};
}

}  // namespace

TEST_CASE("ibverbs: a batch becomes one linked list") {
  Chain chain(64);
  for (const uint32_t writes : {1u, 2u, 7u, 8u, 9u, 64u}) {
    chain.clear();
    uint64_t number = kNumberMask - 3;  // wraps in the middle
    uint32_t requests = 0;
    for (uint32_t i = 0; i < writes; ++i) {
      const uint32_t added = chain.add(planOf(i, i % 3 == 0 ? 0 : 100 + i), uint64_t{7} << 48, number);
      CHECK(added == (i % 3 == 0 ? 1 : 2));
      number += added;
      requests += added;
    }
    const ibv_send_wr* request = chain.finish();
    uint64_t expected = kNumberMask - 3;
    uint32_t seen = 0, unsignalled = 0;
    for (uint32_t i = 0; i < writes; ++i) {
      if (i % 3 != 0) {
        CHECK(request->opcode == IBV_WR_RDMA_WRITE);
        CHECK(request->send_flags == 0);
        CHECK(request->sg_list->addr == 1000 + i);
        CHECK(request->sg_list->length == 100 + i);
        CHECK(request->sg_list->lkey == 3);
        CHECK(request->wr.rdma.remote_addr == 2000 + i);
        CHECK(request->wr.rdma.rkey == 4);
        CHECK(request->wr_id == (uint64_t{7} << 48 | (expected++ & kNumberMask)));
        request = request->next;
        ++seen;
      }
      REQUIRE(request != nullptr);
      CHECK((request->send_flags & IBV_SEND_INLINE) != 0);
      uint64_t value = 0;
      REQUIRE(request->sg_list->length == sizeof(value));
      std::memcpy(&value, reinterpret_cast<const void*>(request->sg_list->addr), sizeof(value));
      CHECK(value == 0x0123456789abcdefu + i);
      CHECK(request->wr.rdma.remote_addr == 8 * i);
      CHECK(request->wr.rdma.rkey == 5);
      CHECK(request->wr_id == (uint64_t{7} << 48 | (expected++ & kNumberMask)));
      unsignalled = (request->send_flags & IBV_SEND_SIGNALED) != 0 ? 0 : unsignalled + 1;
      CHECK(unsignalled < kSignalEvery);
      request = request->next;
      ++seen;
    }
    CHECK(request == nullptr);
    CHECK(seen == requests);
    CHECK(unsignalled == 0);  // the last asks for its completion
  }
}

TEST_CASE("ibverbs: every write completes once, in order, whatever completions are asked for") {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    constexpr uint32_t kCapacity = 40;
    SendLedger ledger(kCapacity);
    Chain chain(64);
    std::vector<std::pair<uint64_t, bool>> card;  // requests in the card's queue: number, asks for a completion
    uint64_t posted = 0, completed = 0;
    // The card fails at this request; those before it have been carried out.
    const uint64_t failAt = random() % 2 == 0 ? UINT64_MAX : random() % 300;
    bool failed = false;
    const auto done = [&](const Posted& one) { CHECK(one.cookie == completed++); };
    while (!failed && posted < 150) {
      chain.clear();
      const uint64_t batch = 1 + random() % 20;
      for (uint64_t i = 0; i < batch && ledger.room() >= 2; ++i) {
        Posted one;
        one.cookie = posted;
        ledger.add(one, chain.add(planOf(posted, random() % 2), 0, ledger.next()));
        ++posted;
      }
      CHECK(ledger.room() <= kCapacity);
      if (!chain.empty())
        for (const ibv_send_wr* r = chain.finish(); r != nullptr; r = r->next)
          card.emplace_back(r->wr_id, (r->send_flags & IBV_SEND_SIGNALED) != 0);
      REQUIRE(card.size() <= kCapacity);
      for (uint64_t step = random() % 30; step > 0 && !card.empty(); --step) {
        const auto [number, signalled] = card.front();
        card.erase(card.begin());
        if (number == failAt) {
          if (number > 0) ledger.complete(number - 1, done);
          failed = true;
          break;
        }
        if (signalled) ledger.complete(number, done);
      }
      // As much room as the card has, but for requests whose completion is not asked for.
      CHECK(kCapacity - ledger.room() >= card.size());
    }
    const uint64_t before = completed;
    if (!failed) {
      for (const auto& [number, signalled] : card)
        if (signalled) ledger.complete(number, done);
      CHECK(ledger.empty());
      CHECK(completed == posted);
      continue;
    }
    ledger.drop(done);
    CHECK(completed == posted);
    CHECK(before <= completed);
    CHECK(ledger.empty());
    CHECK(ledger.room() == kCapacity);
  }
}

// ---- The plugin, where there is no device --------------------------------------------------------------------------

TEST_CASE("ibverbs: the plugin says what it finds") {
  std::string why;
  try {
    const test::Plugin plugin(MK_TEST_IBVERBS, {{"MKERNEL_IB_HCA", "=no_such_device"}});
  } catch (const test::CheckFailed& failure) {
    why = failure.what();
  }
  // Each device, if there are any, is named with why it is not used.
  CHECK(missing(why, {"no usable RDMA port: "}) == "");
  CHECK((why.find("there is no RDMA device") != why.npos ||
         why.find("MKERNEL_IB_HCA==no_such_device leaves it out") != why.npos));
  try {
    const test::Plugin plugin(MK_TEST_IBVERBS, {{"MKERNEL_IB_HCA", "rxe0:x"}});
    FAIL("nonsense is taken");
  } catch (const test::CheckFailed& failure) {
    CHECK(missing(failure.what(), {"MKERNEL_IB_HCA=rxe0:x"}) == "");
  }
}
