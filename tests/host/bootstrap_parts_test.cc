// The bootstrap's parts on their own: unique ids, messages, interface choice, the hub's decisions, descriptors.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "bootstrap_world.h"
#include "host/hub_checks.h"
#include "host/netif.h"
#include "support/catch_compat.h"

using test::contains;
using test::Outcome;

namespace {

mk::Address ipv4(const char* text, uint16_t port) {
  uint8_t bytes[4];
  REQUIRE(inet_pton(AF_INET, text, bytes) == 1);
  return {AF_INET, bytes, port, 0};
}
mk::Address ipv6(const char* text, uint16_t port, uint32_t scope = 0) {
  uint8_t bytes[16];
  REQUIRE(inet_pton(AF_INET6, text, bytes) == 1);
  return {AF_INET6, bytes, port, scope};
}

void checkDecodeFails(const mkUniqueId_t& id, mkResult_t code, const std::string& part) {
  const Outcome outcome = test::run([&](Outcome&) { mk::decodeUniqueId(id); });
  INFO(outcome.text);
  CHECK(outcome.code == code);
  CHECK(contains(outcome.text, part));
}

}  // namespace

TEST_CASE("a unique id carries address and secret", "[bootstrap]") {
  for (const mk::Address& address : {ipv4("10.1.2.3", 65535), ipv6("fe80::1", 1, 7), ipv6("fd00::abcd", 4711)}) {
    const mk::HubPlace place = {mk::randomSecret(), address};
    const mk::HubPlace again = mk::decodeUniqueId(mk::encodeUniqueId(place));
    CHECK(again.secret == place.secret);
    CHECK(again.address == address);
  }
  CHECK(ipv6("fe80::1", 80, 7).text() == "[fe80::1%7]:80");
  CHECK(ipv4("10.1.2.3", 80).text() == "10.1.2.3:80");
  CHECK(ipv6("fe80::1", 80).linkLocal());
  CHECK(!ipv6("fd00::1", 80).linkLocal());
  CHECK(mk::randomSecret() != mk::randomSecret());
}

TEST_CASE("a unique id that is none is refused", "[bootstrap]") {
  mkUniqueId_t id;
  std::memset(&id, 0, sizeof(id));
  checkDecodeFails(id, mkErrorInvalidArgument, "all bytes are zero");
  std::memset(&id, 'x', sizeof(id));
  checkDecodeFails(id, mkErrorInvalidArgument, "begins with 0x78787878");
  const mkUniqueId_t good = mk::encodeUniqueId({mk::randomSecret(), ipv4("10.1.2.3", 1234)});
  id = good;
  id.internal[4] = 9;
  checkDecodeFails(id, mkErrorVersion, "format version 9");
  // Every other byte is covered.
  for (size_t i = 6; i < MK_UNIQUE_ID_BYTES; ++i) {
    id = good;
    id.internal[i] = static_cast<char>(id.internal[i] ^ 0x20);
    checkDecodeFails(id, mkErrorInvalidArgument, "damaged");
  }
}

TEST_CASE("secrets are compared whole", "[bootstrap]") {
  const mk::Secret secret = mk::randomSecret();
  CHECK(mk::sameSecret(secret, secret));
  for (size_t i = 0; i < secret.size(); ++i) {
    mk::Secret other = secret;
    other[i] ^= 1;
    CHECK(!mk::sameSecret(other, secret));
  }
  CHECK(!mk::sameSecret(std::span(secret).first(15), secret));
}

TEST_CASE("messages survive the wire, and damage is noticed", "[bootstrap]") {
  mk::Hello hello;
  hello.secret = mk::randomSecret();
  hello.rank = 3;
  hello.nranks = 7;
  hello.pid = 1234567;
  hello.host = "node-3";
  hello.timeoutMs = 5000;
  hello.leftMs = 4000;
  hello.inHubProcess = true;
  hello.hostId = "abc";
  hello.deviceId.fill(9);
  hello.settings = "a=1\nb=2\n";
  const mk::FrameBytes frame = mk::encode(hello);
  const auto body = std::span<const uint8_t>(*frame).subspan(mk::frameHeaderBytes);
  mk::Hello again;
  REQUIRE(mk::decode(body, &again));
  CHECK(again.secret == hello.secret);
  CHECK(again.rank == 3);
  CHECK(again.nranks == 7);
  CHECK(again.pid == 1234567);
  CHECK(again.host == "node-3");
  CHECK(again.timeoutMs == 5000);
  CHECK(again.leftMs == 4000);
  CHECK(again.inHubProcess);
  CHECK(again.hostId == "abc");
  CHECK(again.deviceId == hello.deviceId);
  CHECK(again.settings == hello.settings);
  for (size_t cut = 0; cut < body.size(); ++cut) CHECK(!mk::decode(body.first(cut), &again));

  // Random bytes never read out of bounds (the sanitizers watch), whatever they decode to.
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint8_t> noise(random() % 200);
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random() % 4 == 0 ? random() : 0);
    mk::Hello h;
    mk::Welcome w;
    mk::Contribution c;
    mk::FailureReport r;
    mk::decode(noise, &h);
    mk::decode(noise, &w);
    mk::decode(noise, &c);
    mk::decode(noise, &r);
  }
}

TEST_CASE("frames arrive whole however the stream is cut", "[bootstrap]") {
  int ends[2];
  mk::Address bound;
  mk::Fd listener = mk::listenStream(ipv4("127.0.0.1", 0), &bound);
  int error = 0;
  mk::Fd client = mk::connectStream(bound, mk::afterMs(2000), &error);
  REQUIRE(client);
  REQUIRE(mk::waitFd(listener.get(), POLLIN, mk::afterMs(2000)));
  mk::Address peer;
  ends[0] = client.get();
  mk::FramedSocket socket(mk::Fd::accept(listener.get(), &peer, &error), 100000);
  std::vector<uint8_t> stream;
  for (const size_t size : {0u, 1u, 11u, 12u, 13u, 70000u, 0u}) {
    const auto frame =
        mk::WireWriter(mk::Message::report).raw(std::vector<uint8_t>(size, static_cast<uint8_t>(size))).done();
    stream.insert(stream.end(), frame->begin(), frame->end());
  }
  std::vector<mk::Frame> frames;
  std::mt19937 random(2);
  for (size_t sent = 0; sent < stream.size();) {
    const size_t n = std::min<size_t>(1 + random() % (sent < 200 ? 5 : 9000), stream.size() - sent);
    REQUIRE(send(ends[0], stream.data() + sent, n, 0) == static_cast<ssize_t>(n));
    sent += n;
    mk::waitFd(socket.fd(), POLLIN, mk::afterMs(1000));
    REQUIRE(socket.receive(&frames, SIZE_MAX) == mk::FramedSocket::State::open);
  }
  while (frames.size() < 7 && mk::waitFd(socket.fd(), POLLIN, mk::afterMs(1000))) socket.receive(&frames, SIZE_MAX);
  REQUIRE(frames.size() == 7);
  CHECK(frames[4].body == std::vector<uint8_t>(13, 13));
  CHECK(frames[5].body == std::vector<uint8_t>(70000, static_cast<uint8_t>(70000)));
  CHECK(frames[6].body.empty());
  client.reset();
  mk::waitFd(socket.fd(), POLLIN, mk::afterMs(1000));
  CHECK(socket.receive(&frames, SIZE_MAX) == mk::FramedSocket::State::ended);
}

TEST_CASE("interface choice", "[bootstrap]") {
  const std::vector<mk::Interface> all = {
      {"lo", ipv4("127.0.0.1", 0), true},     {"docker0", ipv4("172.17.0.1", 0), false},
      {"eth0", ipv4("10.0.0.1", 0), false},   {"eth10", ipv4("10.0.1.1", 0), false},
      {"ib0", ipv4("10.1.0.1", 0), false},    {"lo", ipv6("::1", 0), true},
      {"eth0", ipv6("fe80::1", 0, 2), false}, {"eth10", ipv6("fd00::10", 0), false},
      {"docker0", ipv6("fd01::1", 0), false},
  };
  const auto pick = [&](const char* names, const char* family = "") {
    return mk::chooseInterface(all, names, family).address.withPort(1).text();
  };
  CHECK(pick("") == "10.0.0.1:1");
  CHECK(pick("", "inet6") == "[fd00::10]:1");  // eth0 has only a link-local one
  CHECK(pick("ib") == "10.1.0.1:1");
  CHECK(pick("eth1") == "10.0.1.1:1");
  CHECK(pick("=eth1,=ib0,eth10") == "10.0.1.1:1");  // "=" counts for the whole list; "=ib0" is no name
  CHECK(pick("=eth0") == "10.0.0.1:1");
  CHECK(pick("=eth0", "inet6") == "[fe80::1%2]:1");
  CHECK(pick("^eth,docker") == "10.1.0.1:1");
  CHECK(pick("^=eth0") == "172.17.0.1:1");
  CHECK(pick("^eth,ib,docker") == "127.0.0.1:1");
  CHECK(pick("lo") == "127.0.0.1:1");
  CHECK(pick("lo,ib") == "10.1.0.1:1");
  CHECK(pick("docker") == "172.17.0.1:1");
  CHECK(mk::chooseInterface({all[0], all[1]}, "", "").name == "lo");

  const Outcome none = test::run([&](Outcome&) { pick("=eth", "inet"); });
  CHECK(none.code == mkErrorInvalidUsage);
  CHECK(contains(none.text, "MKERNEL_SOCKET_IFNAME=\"=eth\""));
  CHECK(contains(none.text, "ib0 (10.1.0.1)"));
  const Outcome family = test::run([&](Outcome&) { pick("", "ipx"); });
  CHECK(family.code == mkErrorInvalidUsage);
  CHECK(contains(family.text, "\"ipx\""));
  CHECK(!mk::listInterfaces().empty());
}

TEST_CASE("nodes by lowest rank, whatever the order", "[bootstrap]") {
  std::vector<mk::Hello> hellos(6);
  std::vector<const mk::Hello*> all;
  const char* hosts[] = {"b", "a", "b", "c", "a", "c"};
  for (int i = 0; i < 6; ++i) {
    auto& hello = hellos[static_cast<size_t>(i)];
    hello.rank = i;
    hello.nranks = 6;
    hello.hostId = hosts[i];
    hello.host = "n";
    all.push_back(&hello);
  }
  const mk::Welcome w = mk::arrangeRanks(all);
  CHECK(w.nodes == 3);
  CHECK(w.ranksPerNode == 2);
  const int nodes[] = {0, 1, 0, 2, 1, 2};
  const int locals[] = {0, 0, 1, 0, 1, 1};
  for (size_t i = 0; i < 6; ++i) {
    CHECK(w.peers[i].rank == static_cast<int>(i));
    CHECK(w.peers[i].node == nodes[i]);
    CHECK(w.peers[i].localRank == locals[i]);
  }
}

TEST_CASE("the earliest stage reported decides", "[bootstrap]") {
  const auto make = [](int rank, uint64_t epoch, uint32_t stage, int missing) {
    mk::RankReport r;
    r.rank = rank;
    r.report.epoch = epoch;
    r.report.stageOrder = stage;
    r.report.missingRank = missing;
    return r;
  };
  CHECK(mk::chooseReport({make(0, 5, 3, 1), make(1, 5, 2, 2), make(3, 5, 4, 0)}) == 1);
  // 0 waits for 1, which waits for 2 in the same stage.
  CHECK(mk::chooseReport({make(0, 5, 2, 1), make(1, 5, 2, 2)}) == 1);
  CHECK(mk::chooseReport({make(1, 5, 2, 2), make(0, 5, 2, 1)}) == 0);
  // The next operation's first stage comes after this one's last.
  CHECK(mk::chooseReport({make(0, 6, 0, 1), make(1, 5, 9, 2)}) == 1);
  CHECK(mk::chooseReport({make(0, 5, 2, -1), make(1, 5, 2, 3)}) == 1);
}

TEST_CASE("lists of ranks are short", "[bootstrap]") {
  CHECK(mk::rankList({}).empty());
  CHECK(mk::rankList({0}) == "0");
  CHECK(mk::rankList({0, 1, 2, 5, 6, 9}) == "0-2,5,6,9");
  std::vector<int> odd;
  for (int i = 1; i < 10000; i += 2) odd.push_back(i);
  CHECK(mk::rankList(odd, 50).size() < 70);
}

TEST_CASE("the host's identity is stable", "[bootstrap]") {
  CHECK(mk::defaultHostId() == mk::defaultHostId());
  CHECK(mk::defaultHostId().size() == 32);
}

TEST_CASE("descriptors close on exec and close themselves", "[bootstrap]") {
  const int before = mk::openFds();
  {
    mk::Fd a = mk::Fd::stream(AF_INET);
    mk::Fd b = mk::Fd::event();
    CHECK(mk::openFds() == before + 2);
    CHECK((fcntl(a.get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((fcntl(b.get(), F_GETFD) & FD_CLOEXEC) != 0);
    mk::Fd c = std::move(a);
    CHECK(!a);
    c = std::move(b);
    CHECK(mk::openFds() == before + 1);
  }
  CHECK(mk::openFds() == before);
}
