// What plugins have in common and needs no device: which ports and which of their addresses are taken, and what the kernel says
// of a device.
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/hca_filter.h"
#include "common/rdma_settings.h"
#include "gids.h"
#include "host_values.h"
#include "support/catch_compat.h"
#include "words.h"

using namespace mk::plugin;
using test::failureOf;
using test::ipv4;
using test::kGlobal;
using test::kLinkLocal;
using test::missing;

TEST_CASE("plugins: ports by MKERNEL_IB_HCA") {
  struct Expectation {
    const char* text;
    const char* device;
    int port;
    bool selected;
  };
  const Expectation expectations[] = {
      {"", "mlx5_0", 1, true},
      {"mlx5", "mlx5_0", 1, true},
      {"mlx5", "bnxt_re0", 1, false},
      {"mlx5_1", "mlx5_1", 2, true},
      {"mlx5_1", "mlx5_10", 1, true},  // a prefix
      {"=mlx5_1", "mlx5_10", 1, false},
      {"=mlx5_1", "mlx5_1", 1, true},
      {"=mlx5", "mlx5_0", 1, false},
      {"^mlx5", "mlx5_0", 1, false},
      {"^mlx5", "rxe0", 1, true},
      {"^mlx5_1", "mlx5_12", 1, false},
      {"^=mlx5_1", "mlx5_12", 1, true},
      {"^=mlx5_1,mlx5_12", "mlx5_12", 1, false},
      {"mlx5_0:1", "mlx5_0", 1, true},
      {"mlx5_0:1", "mlx5_0", 2, false},
      {"mlx5_0:1,mlx5_0:2", "mlx5_0", 2, true},
      {"^mlx5_0:1", "mlx5_0", 1, false},
      {"^mlx5_0:1", "mlx5_0", 2, true},
      {"=mlx5_0:1,mlx5_3", "mlx5_3", 2, true},
      {"=mlx5_0:1,mlx5_3", "mlx5_30", 2, false},
      {",rxe0,,rxe1,", "rxe1", 1, true},
      {"^", "rxe1", 1, true},
  };
  for (const Expectation& e : expectations) {
    INFO(e.text << " and " << e.device << ":" << e.port);
    CHECK(HcaFilter(e.text).selects(e.device, e.port) == e.selected);
  }
  for (const char* text :
       {"mlx5_0:", "mlx5_0:0", "mlx5_0:256", "mlx5_0:1x", "mlx5_0:-1", ":1", "a,^b", "a,=b", "=^a", "a b"}) {
    INFO(text);
    const std::string why = failureOf(mkErrorInvalidArgument, [&] { const HcaFilter filter(text); });
    CHECK(missing(why, {"MKERNEL_IB_HCA=", text}) == "");
  }
}

TEST_CASE("plugins: settings of RDMA connections") {
  const mkTransportHost_t host = test::hostOfValues();
  test::hostValues = {};
  const RdmaSettings none = readRdmaSettings(host);
  CHECK(none.hca.empty());
  CHECK(none.gidIndex == -1);
  CHECK(patienceText(none) ==
        "no acknowledgement for 7516 ms or more (MKERNEL_IB_TIMEOUT=18, MKERNEL_IB_RETRY_COUNT=6)");
  test::hostValues = {{"MKERNEL_IB_HCA", "=mlx5_1"},   {"MKERNEL_IB_GID_INDEX", "255"}, {"MKERNEL_IB_TIMEOUT", "8"},
                      {"MKERNEL_IB_RETRY_COUNT", "1"}, {"MKERNEL_IB_SL", "15"},         {"MKERNEL_IB_TC", "106"}};
  const RdmaSettings read = readRdmaSettings(host);
  CHECK(read.hca == "=mlx5_1");
  CHECK(read.gidIndex == 255);
  CHECK(read.timeout == 8);
  CHECK(read.retryCount == 1);
  CHECK(read.serviceLevel == 15);
  CHECK(read.trafficClass == 106);
  CHECK(patienceText(read) == "no acknowledgement for 2 ms or more (MKERNEL_IB_TIMEOUT=8, MKERNEL_IB_RETRY_COUNT=1)");

  struct Range {
    const char* name;
    int least, most;
  };
  for (const Range& range :
       {Range{"MKERNEL_IB_GID_INDEX", -1, 255}, Range{"MKERNEL_IB_TIMEOUT", 8, 22},
        Range{"MKERNEL_IB_RETRY_COUNT", 0, 6}, Range{"MKERNEL_IB_SL", 0, 15}, Range{"MKERNEL_IB_TC", 0, 255}}) {
    for (const int value : {range.least, range.most}) {
      test::hostValues = {{range.name, std::to_string(value)}};
      CHECK_NOTHROW(readRdmaSettings(host));
    }
    const std::string legal =
        "must be an integer from " + std::to_string(range.least) + " to " + std::to_string(range.most);
    for (const std::string& value : {std::to_string(range.least - 1), std::to_string(range.most + 1),
                                     std::string("0x1"), std::string("much"), std::string("")}) {
      test::hostValues = {{range.name, value}};
      const std::string why = failureOf(mkErrorInvalidArgument, [&] { readRdmaSettings(host); });
      CHECK(missing(why, {range.name + ("=" + value + ": ") + legal}) == "");
    }
  }
}

TEST_CASE("plugins: the choice of a GID") {
  const auto chosen = [](const std::vector<GidEntry>& table, bool ethernet = true) {
    return chooseGid(table, ethernet, -1, "rxe0:1").index;
  };
  using K = GidKind;
  // As a driver lists them: each address in both versions.
  std::vector<GidEntry> table = {
      {0, kLinkLocal, K::roceV1}, {1, kLinkLocal, K::roceV2}, {2, ipv4(10, 0, 0, 1), K::roceV1}};
  CHECK(chosen(table) == 1);  // v2, though of the link only
  table.push_back({4, kGlobal, K::roceV2});
  CHECK(chosen(table) == 4);
  table.push_back({5, ipv4(169, 254, 3, 4), K::roceV2});
  CHECK(chosen(table) == 4);
  table.push_back({7, ipv4(10, 0, 0, 1), K::roceV2});
  CHECK(chosen(table) == 7);
  table.push_back({9, ipv4(10, 0, 0, 2), K::roceV2});
  CHECK(chosen(table) == 7);
  CHECK(chosen({table.rbegin(), table.rend()}) == 7);
  CHECK(chosen({{0, {}, K::roceV2}, {3, kLinkLocal, K::roceV1}}) == 3);  // an empty entry is none
  CHECK(chosen({{2, kGlobal, K::infiniband}, {0, kLinkLocal, K::infiniband}}, false) == 0);

  CHECK(chooseGid(table, true, 2, "rxe0:1").kind == K::roceV1);  // what is asked for is taken
  const std::string why = failureOf(mkErrorInvalidArgument, [&] { chooseGid(table, true, 3, "rxe0:1"); });
  CHECK(missing(why, {"MKERNEL_IB_GID_INDEX=3", "rxe0:1", "0, 1, 2, 4, 5, 7, 9"}) == "");
  CHECK(missing(failureOf(mkErrorTransport, [] { chooseGid({}, true, -1, "rxe0:1"); }), {"rxe0:1 has no GID"}) == "");
  CHECK(gidText(ipv4(10, 99, 0, 2)) == "10.99.0.2");
  CHECK(gidText(kGlobal) == "2001:db8::1");
}

TEST_CASE("plugins: what the kernel says of an RDMA device") {
  CHECK(bytesPerSecond(2, 128) == 50'000'000'000u);  // NDR, four lanes
  CHECK(bytesPerSecond(2, 32) == 12'500'000'000u);
  CHECK(bytesPerSecond(3, 32) == 0);
  CHECK(bytesPerSecond(1, 3) == 0);

  namespace fs = std::filesystem;
  char name[] = "/tmp/mk-rdma-XXXXXX";
  REQUIRE(mkdtemp(name) != nullptr);
  const fs::path root = name, devices = root / "class";
  // A card, one behind a bridge with a domain of its own, a function made from a part of a card, one that is not there.
  for (const auto& [device, place] : std::vector<std::pair<std::string, std::string>>{{"mlx5_0", "bus/0000:17:00.0"},
                                                                                      {"mlx5_1", "bus/10000:01:00.1"},
                                                                                      {"mlx5_2", "bus/mlx5_core.sf.2"},
                                                                                      {"rxe0", ""}}) {
    fs::create_directories(devices / device);
    if (!place.empty()) fs::create_directories(root / place);
    fs::create_directory_symlink(place.empty() ? root / "nowhere" : root / place, devices / device / "device");
  }
  CHECK(pciBusIdOf("mlx5_0", devices) == "0000:17:00.0");
  CHECK(pciBusIdOf("mlx5_1", devices) == "10000:01:00.1");
  CHECK(pciBusIdOf("mlx5_2", devices) == "");
  CHECK(pciBusIdOf("rxe0", devices) == "");
  CHECK(pciBusIdOf("none", devices) == "");
  fs::remove_all(root);
}
