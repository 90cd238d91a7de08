// The plugin loader: where it looks, what it refuses and why, and that a transport asked for by name never falls back.
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/error.h"
#include "host/params.h"
#include "host/transport.h"
#include "support/catch_compat.h"
#include "support/child.h"
#include "support/temp.h"
#include "words.h"

namespace mk {
namespace {

namespace fs = std::filesystem;
using test::missing;

const std::string kStubs = MK_TEST_STUBS;
const std::string kLoopbackFile = MK_TEST_LOOPBACK;
const std::string kLoopback = fs::path(kLoopbackFile).parent_path();

std::string fileOf(const std::string& name) { return kStubs + "/libmkernel-" + name + ".so"; }

// The error's text; "" if it loads.
std::string refusal(TransportLoader& loader, const std::string& name) {
  try {
    loader.acquire(name);
    return "";
  } catch (const Error& error) {
    CHECK(error.code() == mkErrorTransport);
    return error.what();
  }
}

TransportStatus onlyStatus(TransportLoader& loader) {
  const std::vector<TransportStatus> statuses = loader.statuses();
  REQUIRE(statuses.size() == 1);
  return statuses[0];
}

TEST_CASE("loader: every kind of unusable plugin keeps its reason") {
  struct Case {
    const char* name;
    const char* reason;
    uint32_t major, minor;
  };
  const Case cases[] = {
      {"older_major", "mkTransport_v1 has interface version 0.3, this library needs 1.x", 0, 3},
      {"newer_major", "mkTransport_v1 has interface version 2.3, this library needs 1.x", 2, 3},
      {"truncated", "mkTransport_v1 is truncated: 128 bytes, at least 144 are needed", 1, MK_TRANSPORT_ABI_MINOR},
      {"empty", "mkTransport_v1 is truncated: 0 bytes", 0, 0},
      {"no_symbol", "exports no mkTransport_v1", 0, 0},
      {"undefined", "undefined symbol: mkStubNowhereDefined", 0, 0},
      {"no_library", "libmkNowhere.so.9: cannot open shared object file", 0, 0},
      {"lacks_entry", "lacks the required entry 'post'", 1, MK_TRANSPORT_ABI_MINOR},
      {"no_devices", "no devices", 1, MK_TRANSPORT_ABI_MINOR},
      {"devices_fail", "devices could not be listed: the bus does not answer", 1, MK_TRANSPORT_ABI_MINOR},
      {"init_fails", "initialisation failed: the driver is too old: 4, at least 7 is needed", 1,
       MK_TRANSPORT_ABI_MINOR},
      {"bad_contract", "unknown contract 9", 1, MK_TRANSPORT_ABI_MINOR},
      {"narrow", "immediates of 16 bits", 1, MK_TRANSPORT_ABI_MINOR},
      {"no_room", "maxOutstanding 0", 1, MK_TRANSPORT_ABI_MINOR},
      {"misnamed", "the file holds the transport 'good'", 1, MK_TRANSPORT_ABI_MINOR},
  };
  for (const Case& one : cases) {
    INFO(one.name);
    // Whatever is wrong with it, neither the automatic choice nor a usable plugin takes its place.
    TransportLoader loader({kStubs, kLoopback}, {"loopback", "good"});
    const std::string text = refusal(loader, one.name);
    CHECK(missing(text, {"asked for", one.name, one.reason, fileOf(one.name)}) == "");
    const TransportStatus status = onlyStatus(loader);
    CHECK(std::string(status.name) == one.name);
    CHECK(status.path == fileOf(one.name));
    CHECK(missing(status.status, {one.reason}) == "");
    CHECK(status.abiMajor == one.major);
    CHECK(status.abiMinor == one.minor);
    CHECK(status.devices == 0);
    CHECK(status.contract == 0);
  }
}

TEST_CASE("loader: a usable plugin is described, loaded once and shared, and taken down at the end") {
  void* const object = dlopen(fileOf("good").c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(object != nullptr);
  const int* const inits = static_cast<int*>(dlsym(object, "stubInits"));
  const int* const finis = static_cast<int*>(dlsym(object, "stubFinis"));
  const int before = *inits;
  {
    auto loader = std::make_unique<TransportLoader>(std::vector<std::string>{kStubs}, std::vector<std::string>{});
    const std::shared_ptr<Transport> first = loader->acquire("good"), second = loader->acquire("good");
    CHECK(first == second);
    CHECK(*inits == before + 1);
    CHECK(first->name == "good");
    CHECK(first->path == fileOf("good"));
    CHECK(first->devices == 2);
    CHECK(first->properties.contract == MK_CONTRACT_COMPLETION);
    CHECK(first->properties.maxBytes == 1024);
    CHECK(first->table->post != nullptr);
    const TransportStatus status = onlyStatus(*loader);
    CHECK(std::string(status.status).empty());
    CHECK(status.devices == 2);
    CHECK(status.contract == MK_CONTRACT_COMPLETION);
    CHECK(status.immediateBits == 32);
    CHECK(status.devicePosted == 1);
    CHECK(status.abiMajor == 1);
    // Whoever uses it keeps it.
    loader.reset();
    CHECK(*finis == before);
  }
  CHECK(*finis == before + 1);
  dlclose(object);
}

TEST_CASE("loader: tables of other minor versions") {
  TransportLoader loader({kStubs}, {});
  const std::shared_ptr<Transport> newer = loader.acquire("newer_minor");
  CHECK(newer->table->abiMinor == MK_TRANSPORT_ABI_MINOR + 6);
  CHECK(loader.statuses()[0].abiMinor == MK_TRANSPORT_ABI_MINOR + 6);
  // What the table claims not to have is not read, whatever lies there.
  CHECK(loader.acquire("without_optional")->table->queueDescriptor == nullptr);
}

TEST_CASE("loader: files that do not exist, and names that are none") {
  TransportLoader loader({"/nowhere/at/all", kStubs}, {});
  CHECK(missing(refusal(loader, "ibverbs"),
                {"ibverbs: libmkernel-ibverbs.so not found in: /nowhere/at/all:" + kStubs}) == "");
  for (const char* name : {"../good", "good.so", "a b", "/libmkernel-good"})
    CHECK(missing(refusal(loader, name), {"not a transport's name"}) == "");
  TransportLoader nowhere({}, {"loopback"});
  CHECK(missing(refusal(nowhere, ""), {"no network transport is usable: loopback:", "not found in"}) == "");
}

TEST_CASE("loader: the first file found decides") {
  const test::TempDir dir;
  fs::create_symlink(fileOf("no_devices"), dir.path() + "/libmkernel-good.so");
  TransportLoader spoilt({dir.path(), kStubs}, {"good"});
  CHECK(missing(refusal(spoilt, "good"), {"the file holds the transport 'no_devices'"}) == "");
  CHECK(missing(refusal(spoilt, ""), {"the file holds the transport 'no_devices'"}) == "");
  TransportLoader fine({kStubs, dir.path()}, {});
  CHECK(refusal(fine, "good").empty());
  // A place may be a single file, which counts for its own name only.
  TransportLoader file({fileOf("good"), kLoopbackFile}, {});
  CHECK(refusal(file, "good").empty());
  CHECK(refusal(file, "loopback").empty());
  CHECK(missing(refusal(file, "no_devices"), {"not found in"}) == "");
  // Not a plugin at all.
  dir.write("libmkernel-text.so", "just text");
  TransportLoader text({dir.path()}, {});
  CHECK(missing(refusal(text, "text"), {"libmkernel-text.so: "}) == "");
}

TEST_CASE("loader: a rejected plugin is tried again") {
  const test::TempDir dir;
  TransportLoader loader({dir.path()}, {});
  CHECK(missing(refusal(loader, "good"), {"not found"}) == "");
  const TransportStatus before = onlyStatus(loader);
  fs::create_symlink(fileOf("good"), dir.path() + "/libmkernel-good.so");
  CHECK(refusal(loader, "good").empty());
  CHECK(std::string(onlyStatus(loader).status).empty());
  CHECK(missing(before.status, {"not found"}) == "");  // the older strings are still there
}

TEST_CASE("loader: the automatic choice takes the best that finds a device, and keeps the others' reasons") {
  TransportLoader loader({kStubs, kLoopback}, {"ibverbs", "efa", "loopback"});
  const std::shared_ptr<Transport> chosen = loader.acquire("");
  CHECK(chosen->name == "loopback");
  CHECK(chosen->path == kLoopbackFile);
  const std::vector<TransportStatus> statuses = loader.statuses();
  REQUIRE(statuses.size() == 3);
  CHECK(std::string(statuses[0].name) == "ibverbs");
  CHECK(missing(statuses[0].status, {"not found in"}) == "");
  CHECK(std::string(statuses[1].name) == "efa");
  CHECK(std::string(statuses[1].status) == "no devices");
  CHECK(std::string(statuses[2].name) == "loopback");
  CHECK(std::string(statuses[2].status).empty());

  TransportLoader better({kStubs, kLoopback}, {"good", "loopback"});
  CHECK(better.acquire("")->name == "good");
  CHECK(better.statuses().size() == 1);  // the rest was not touched

  // Asked before anything was tried, the loader tries what it knows.
  TransportLoader asked({kStubs, kLoopback}, {"ibverbs", "efa", "loopback"});
  CHECK(asked.statuses().size() == 3);
}

TEST_CASE("loader: several threads get one plugin") {
  TransportLoader loader({kLoopback}, {"loopback"});
  std::vector<std::shared_ptr<Transport>> got(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < got.size(); ++i)
    threads.emplace_back([&, i] {
      got[i] = loader.acquire(i % 2 == 0 ? "" : "loopback");
      loader.statuses();
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(std::all_of(got.begin(), got.end(), [&](const auto& one) { return one != nullptr && one == got[0]; }));
}

TEST_CASE("loader: where the process looks") {
  using Places = std::vector<std::string>;
  const std::string compiledIn = transportPlaces("", "", false).back();
  CHECK(transportPlaces("/a:/b/libmkernel-x.so::/a", "/usr/lib/libmkernel.so.0", false) ==
        Places{"/a", "/b/libmkernel-x.so", "/usr/lib/mkernel", compiledIn});
  CHECK(transportPlaces("near", "", false) == Places{(fs::current_path() / "near").string(), compiledIn});
  // A privileged process does as if the environment named nothing.
  CHECK(transportPlaces("/a:/b", "/usr/lib/libmkernel.so.0", true) == Places{"/usr/lib/mkernel", compiledIn});
}

// ---- In a process of its own: what the environment says is read once -----------------------------------------------

TEST_CASE("child: loader", "[.child]") {
  try {
    std::printf("chosen: %s\n", acquireTransport(params().net)->name.c_str());
  } catch (const Error& error) {
    std::printf("refused: %s\n", error.what());
  }
  int count = 0;
  CHECK(mkTransportCount(&count) == mkSuccess);
  for (int i = 0; i < count; ++i) {
    mkTransportInfo_t info = {};
    info.structSize = sizeof(info);
    info.structId = MK_ID_TRANSPORT_INFO;
    CHECK(mkTransportQuery(i, &info) == mkSuccess);
    std::printf("%s: %s\n", info.name, info.status);
  }
}

TEST_CASE("loader: the process's own") {
  const std::string path = "MKERNEL_PLUGIN_PATH=" + kStubs + ":" + kLoopback;
  const test::Child chosen = test::runSelf("child: loader", {path, "MKERNEL_DEBUG=INFO"});
  CHECK(chosen.status == 0);
  CHECK(missing(chosen.out, {"chosen: loopback\n", "efa: no devices\n", "loopback: \n"}) == "");
  CHECK(missing(chosen.err, {"using transport loopback (ordered contract"}) == "");

  const test::Child named = test::runSelf("child: loader", {path, "MKERNEL_NET=good", "MKERNEL_DEBUG=INFO"});
  CHECK(missing(named.out, {"chosen: good\n"}) == "");
  CHECK(missing(named.err, {"the stub says hello, 100%s"}) == "");

  const test::Child refused = test::runSelf("child: loader", {path, "MKERNEL_NET=efa"});
  CHECK(missing(refused.out, {"refused: ", "no devices"}) == "");
  CHECK(refused.out.find("loopback") == std::string::npos);

  // Both versions, or the loader's words: from mkTransportQuery, and in the log.
  for (const auto& [name, words] : {std::pair("older_major", "interface version 0.3, this library needs 1.x"),
                                    std::pair("newer_major", "interface version 2.3, this library needs 1.x"),
                                    std::pair("no_library", "libmkNowhere.so.9: cannot open shared object file")}) {
    const std::string asked = name;
    const test::Child child = test::runSelf("child: loader", {path, "MKERNEL_NET=" + asked, "MKERNEL_DEBUG=INFO"});
    CHECK(child.status == 0);
    CHECK(missing(child.out, {"refused: ", "\n" + asked + ": ", words}) == "");
    CHECK(child.out.find("chosen") == std::string::npos);
    CHECK(missing(child.err, {"transport " + asked + ": not usable: ", words}) == "");
  }

  const test::Child wrong = test::runSelf("child: loader", {path, "MKERNEL_LOOPBACK_CONTRACT=strict"});
  CHECK(missing(wrong.out, {"MKERNEL_LOOPBACK_CONTRACT=strict: must be ordered or completion"}) == "");
}

}  // namespace
}  // namespace mk
