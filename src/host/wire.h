// What the bootstrap's messages say, and their bytes: little-endian, strings and byte arrays with a 32-bit length in front.
// The frame header, the messages hello (up to and including the host name) and joinError keep their layout in all versions of
// the library, so that different versions can tell each other that they differ.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "host/bootstrap.h"
#include "host/framed.h"
#include "host/unique_id.h"

namespace mk {

// C->H: from a rank to the hub; H->C: the other way.
enum class Message : uint32_t {
  hello = 1,          // C->H
  welcome = 2,        // H->C all have joined
  joinError = 3,      // H->C u32 code, text; the end of the connection
  contribution = 4,   // C->H to a collective
  part = 5,           // H->C u64 sequence, u32 rank, bytes: one rank's contribution to an allgather
  collected = 6,      // H->C u64 sequence, u32 code, text: the end of a collective; code 0: success
  report = 7,         // C->H FailureReport
  revoke = 8,         // C->H
  verdict = 9,        // H->C u32 code, text
  askArguments = 10,  // H->C u32 argument hash, u64 epoch
  arguments = 11,     // C->H u32 argument hash, u64 epoch, text
  leave = 12,         // C->H let go of my memory
  leaving = 13,       // H->C u32 rank
  letGo = 14,         // C->H u32 the leaving rank; H->C u32 the rank that let go
  goodbye = 15,       // C->H I do nothing any more
  gone = 16,          // H->C u32 rank: died, or said goodbye
  farewell = 17,      // H->C the answer to goodbye; the end of the connection
};

inline constexpr uint32_t wireVersion = 2;
inline constexpr int maxRanks = 1 << 16;
inline constexpr size_t maxGatherBytes = 1 << 20;
inline constexpr size_t maxNameBytes = 256;  // host names, host ids
inline constexpr size_t maxSettingsBytes = 32 << 10;
inline constexpr size_t maxTextBytes = 4 << 10;    // errors
inline constexpr size_t maxReportBytes = 1 << 10;  // reports and arguments: an error holds up to three
inline constexpr size_t maxHelloBytes = maxSettingsBytes + 4 * maxNameBytes;
inline constexpr size_t maxRankMessageBytes = maxGatherBytes + 2 * maxTextBytes;
size_t maxHubMessageBytes(int nranks);
// The hub gives up a little before the ranks' own deadlines, so that all get its one text instead of each its own.
inline int64_t hubShareOfTimeout(uint32_t timeoutMs) { return timeoutMs - std::min<int64_t>(timeoutMs / 5, 1000); }

class WireWriter {
 public:
  explicit WireWriter(Message type);
  WireWriter& u8(uint8_t value) { return number(value, 1); }
  WireWriter& u32(uint32_t value) { return number(value, 4); }
  WireWriter& i32(int32_t value) { return number(static_cast<uint32_t>(value), 4); }
  WireWriter& u64(uint64_t value) { return number(value, 8); }
  WireWriter& raw(std::span<const uint8_t> bytes);
  WireWriter& bytes(std::span<const uint8_t> bytes);
  WireWriter& text(const std::string& text, size_t max);  // cut off at max
  FrameBytes done();

 private:
  WireWriter& number(uint64_t value, size_t width);
  std::vector<uint8_t> frame_;
};

// Reads past the end, or lengths beyond `max`, give zeros and make ok() false for good.
class WireReader {
 public:
  explicit WireReader(std::span<const uint8_t> bytes) : rest_(bytes) {}
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  int32_t i32() { return static_cast<int32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  std::span<const uint8_t> raw(size_t length);
  std::span<const uint8_t> bytes(size_t max);
  std::string text(size_t max);
  bool ok() const { return ok_; }
  bool atEnd() const { return ok_ && rest_.empty(); }

 private:
  uint64_t number(size_t width);
  std::span<const uint8_t> rest_;
  bool ok_ = true;
};

struct Hello {
  Secret secret = {};
  uint32_t wire = wireVersion;
  uint32_t library = MK_VERSION_CODE;
  int32_t rank = 0, nranks = 1;
  int64_t pid = 0;
  std::string host;
  // From here on only where `wire` is ours.
  uint32_t timeoutMs = 0, leftMs = 0;  // for joining: this rank's setting, and what is left of it
  bool inHubProcess = false;
  std::string hostId;
  std::array<uint8_t, 16> deviceId = {};
  std::string settings;
};
FrameBytes encode(const Hello& hello);
bool decode(std::span<const uint8_t> body, Hello* hello);

struct Welcome {
  int32_t nodes = 1, ranksPerNode = 1;
  int64_t hubPid = 0;
  std::string hubHost;
  std::vector<PeerInfo> peers;
  std::vector<bool> inHubProcess;  // by rank
};
FrameBytes encode(const Welcome& welcome);
bool decode(std::span<const uint8_t> body, Welcome* welcome);

// One rank's part in its sequence-th collective.
struct Contribution {
  enum Kind : uint32_t { allgather = 0, agree = 1 };
  uint64_t sequence = 0;
  uint32_t kind = allgather;
  uint32_t timeoutMs = 0, leftMs = 0;  // as of a Hello; this call has leftMs
  uint64_t launched = 0;               // epoch of the rank's newest operation
  std::string what;
  std::vector<uint8_t> bytes;  // allgather
  uint32_t code = mkSuccess;   // agree
  std::string text;
};
FrameBytes encode(const Contribution& contribution);
bool decode(std::span<const uint8_t> body, Contribution* contribution);

FrameBytes encode(const FailureReport& report);
bool decode(std::span<const uint8_t> body, FailureReport* report);

// Messages with nothing but a rank, or nothing at all.
FrameBytes encodeRank(Message type, int rank);
FrameBytes encodeEmpty(Message type);
// joinError and verdict.
FrameBytes encodeError(Message type, mkResult_t code, const std::string& text);

// "rank 3 (host n07, pid 4711)"
std::string rankName(int rank, const std::string& host, int64_t pid);
// "0-3,7"; at most about `limit` characters, then "...".
std::string rankList(const std::vector<int>& ranks, size_t limit = 200);

}  // namespace mk
