// The border of the C interface from inside: exceptions become codes and texts, structures of other sizes are understood
// or refused.  Other sizes are made by hand here, as an older and a newer header would.
#include "api/guard.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/catch_compat.h"

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

mkResult_t refused(const char* function, mkResult_t code, const char* text) {
  return mk::guarded(function, [&] { throw mk::Error(code, text); });
}

// A caller's mkTune_t from a header that is `extra` bytes longer.
template <uint32_t extra>
struct Longer {
  mkTune_t tune;
  unsigned char tail[extra];
};

template <class Struct>
Struct initialised(uint32_t id) {
  Struct s;
  MK_INIT(&s, id);
  return s;
}

mkResult_t codeOf(void (*body)()) { return mk::guarded("body", body); }

}  // namespace

TEST_CASE("exceptions become codes and the thread's last error", "[api]") {
  CHECK(mk::guarded("f", [] {}) == mkSuccess);
  CHECK(refused("mkFoo", mkErrorTimeout, "rank 3 is late") == mkErrorTimeout);
  CHECK(std::string(mkGetLastError(nullptr)) == "mkFoo: rank 3 is late");
  CHECK(mk::guarded("f", [] {}) == mkSuccess);
  CHECK(std::string(mkGetLastError(nullptr)) == "mkFoo: rank 3 is late");  // a success does not clear it

  CHECK(refused("mkFoo", mkErrorTimeout, "mkFoo: rank 4 is late") == mkErrorTimeout);
  CHECK(std::string(mkGetLastError(nullptr)) == "mkFoo: rank 4 is late");  // named once

  CHECK(codeOf([] { throw std::bad_alloc(); }) == mkErrorSystem);
  CHECK(std::string(mkGetLastError(nullptr)) == "body: out of memory");
  CHECK(codeOf([] { throw std::runtime_error("odd"); }) == mkErrorInternal);
  CHECK(std::string(mkGetLastError(nullptr)) == "body: odd");
  CHECK(codeOf([] { throw 5; }) == mkErrorInternal);

  std::string other = "unset";
  std::thread([&] { other = mkGetLastError(nullptr); }).join();
  CHECK(other.empty());  // of its own thread only
}

TEST_CASE("a structure must be there, be the right one, and have a plausible size", "[api]") {
  CHECK(codeOf([] { mk::readStruct<mkTune_t>(nullptr, "tune"); }) == mkErrorInvalidArgument);
  CHECK(contains(mkGetLastError(nullptr), "tune is NULL; legal is a pointer to an initialised mkTune_t"));

  CHECK(codeOf([] {
          const mkTune_t zero = {};
          mk::readStruct(&zero, "tune");
        }) == mkErrorInvalidArgument);
  CHECK(codeOf([] {
          const auto tune = initialised<mkTune_t>(MK_ID_CONFIG);
          mk::readStruct(&tune, "args->tune");
        }) == mkErrorInvalidArgument);
  CHECK(contains(mkGetLastError(nullptr),
                 "args->tune->structId is 0x6d6b0001 (mkConfig_t); legal is 0x6d6b0006 (mkTune_t)"));

  for (const uint32_t size : {0u, 7u, 4097u, 0xffffffffu}) {
    auto tune = initialised<mkTune_t>(MK_ID_TUNE);
    tune.structSize = size;
    CHECK(mk::guarded("f", [&] { mk::readStruct(&tune, "tune"); }) == mkErrorInvalidArgument);
    CHECK(contains(mkGetLastError(nullptr), "tune->structSize is " + std::to_string(size)));
    CHECK(mk::guarded("f", [&] { mk::writeStruct(&tune, mkTune_t{}, "tune"); }) == mkErrorInvalidArgument);
  }
}

TEST_CASE("an older caller's shorter structure gets defaults", "[api]") {
  auto tune = initialised<mkTune_t>(MK_ID_TUNE);
  tune.tileM = 128;
  tune.tileN = 64;
  tune.structSize = offsetof(mkTune_t, tileN);  // ends before tileN: that memory is not the structure's
  const mkTune_t ours = mk::readStruct(&tune, "tune");
  CHECK(ours.structSize == sizeof(mkTune_t));
  CHECK(ours.structId == MK_ID_TUNE);
  CHECK(ours.tileM == 128);
  CHECK(ours.tileN == 0);
}

TEST_CASE("a newer caller's longer structure is read if its tail is zero", "[api]") {
  auto longer = initialised<Longer<24>>(MK_ID_TUNE);
  longer.tune.chunkTiles = 4;
  CHECK(mk::readStruct(&longer.tune, "tune").chunkTiles == 4);
  longer.tail[23] = 1;
  CHECK(mk::guarded("f", [&] { mk::readStruct(&longer.tune, "tune"); }) == mkErrorVersion);
  CHECK(contains(mkGetLastError(nullptr), "byte " + std::to_string(sizeof(mkTune_t) + 23)));
  CHECK(contains(mkGetLastError(nullptr), "knows " + std::to_string(sizeof(mkTune_t)) + " bytes"));
}

TEST_CASE("output structures are filled as far as both know them", "[api]") {
  mkTune_t ours = {};
  ours.tileM = 1;
  ours.minSMs = 2;
  ours.reserved0 = 3;

  auto same = initialised<mkTune_t>(MK_ID_TUNE);
  mk::writeStruct(&same, ours, "tune");
  CHECK(same.structSize == sizeof(mkTune_t));
  CHECK(same.structId == MK_ID_TUNE);
  CHECK(same.tileM == 1);
  CHECK(same.reserved0 == 3);

  mkTune_t shorter;
  std::memset(&shorter, 0xee, sizeof(shorter));
  shorter.structSize = offsetof(mkTune_t, minSMs);
  shorter.structId = MK_ID_TUNE;
  mk::writeStruct(&shorter, ours, "tune");
  CHECK(shorter.structSize == offsetof(mkTune_t, minSMs));
  CHECK(shorter.tileM == 1);
  CHECK(shorter.minSMs == 0xeeeeeeee);  // beyond its end: untouched

  Longer<24> longer;
  std::memset(&longer, 0xee, sizeof(longer));
  longer.tune.structSize = sizeof(longer);
  longer.tune.structId = MK_ID_TUNE;
  mk::writeStruct(&longer.tune, ours, "tune");
  CHECK(longer.tune.structSize == sizeof(longer));
  CHECK(longer.tune.minSMs == 2);
  for (const unsigned char byte : longer.tail) CHECK(byte == 0);
}

TEST_CASE("version, build and error texts", "[api]") {
  int version = -1;
  REQUIRE(mkGetVersion(&version) == mkSuccess);
  CHECK(version == MK_MAJOR * 10000 + MK_MINOR * 100 + MK_PATCH);
  CHECK(mkGetVersion(nullptr) == mkErrorInvalidArgument);
  CHECK(contains(mkGetLastError(nullptr), "mkGetVersion: version is NULL"));

  auto info = initialised<mkBuildInfo_t>(MK_ID_BUILD_INFO);
  REQUIRE(mkGetBuildInfo(&info) == mkSuccess);
  CHECK(info.version == static_cast<uint32_t>(version));
  CHECK_FALSE(std::string(info.revision).empty());
  CHECK_FALSE(std::string(info.compiler).empty());
  const bool cuda = info.cudaVersion != 0;
  CHECK(std::string(info.platforms) == (cuda ? "cpu,cuda" : "cpu"));
  CHECK(std::string(info.cudaArchs) == (cuda ? "90a" : ""));
  CHECK(info.transportAbiMajor == 1);

  const std::string unknown = mkGetErrorString(static_cast<mkResult_t>(99));
  for (const int code : {0, 1, 2, 3, 4, 5, 6, 7, 8, 64, 65, 66, 67, 68, 69, 70}) {
    INFO(code);
    CHECK(mkGetErrorString(static_cast<mkResult_t>(code)) != unknown);
  }
}

TEST_CASE("parameters can be listed", "[api]") {
  int count = 0;
  REQUIRE(mkParamCount(&count) == mkSuccess);
  REQUIRE(count > 20);
  bool seen = false;
  for (int i = 0; i < count; ++i) {
    auto info = initialised<mkParamInfo_t>(MK_ID_PARAM_INFO);
    REQUIRE(mkParamGet(i, &info) == mkSuccess);
    seen = seen || std::string(info.name) == "MKERNEL_TIMEOUT_MS";
    CHECK(std::string(info.name).rfind("MKERNEL_", 0) == 0);
  }
  CHECK(seen);
  auto info = initialised<mkParamInfo_t>(MK_ID_PARAM_INFO);
  CHECK(mkParamGet(count, &info) == mkErrorInvalidArgument);
  CHECK(contains(mkGetLastError(nullptr),
                 "index is " + std::to_string(count) + "; legal is 0 to " + std::to_string(count - 1)));
  CHECK(mkParamGet(-1, &info) == mkErrorInvalidArgument);
  CHECK(mkParamCount(nullptr) == mkErrorInvalidArgument);
}
