// See wire.h.
#include "host/wire.h"

namespace mk {

size_t maxHubMessageBytes(int nranks) {
  return std::max(maxRankMessageBytes, (static_cast<size_t>(nranks) + 8) * (2 * maxNameBytes + 64));
}

// ---- Bytes ---------------------------------------------------------------------------------------------------------

WireWriter::WireWriter(Message type) { u32(frameMagic).u32(static_cast<uint32_t>(type)).u32(0); }

WireWriter& WireWriter::number(uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) frame_.push_back(static_cast<uint8_t>(value >> (8 * i)));
  return *this;
}

WireWriter& WireWriter::raw(std::span<const uint8_t> bytes) {
  frame_.insert(frame_.end(), bytes.begin(), bytes.end());
  return *this;
}

WireWriter& WireWriter::bytes(std::span<const uint8_t> bytes) {
  return u32(static_cast<uint32_t>(bytes.size())).raw(bytes);
}

WireWriter& WireWriter::text(const std::string& text, size_t max) {
  return bytes({reinterpret_cast<const uint8_t*>(text.data()), std::min(text.size(), max)});
}

FrameBytes WireWriter::done() {
  const size_t length = frame_.size() - frameHeaderBytes;
  for (size_t i = 0; i < 4; ++i) frame_[8 + i] = static_cast<uint8_t>(length >> (8 * i));
  return std::make_shared<const std::vector<uint8_t>>(std::move(frame_));
}

std::span<const uint8_t> WireReader::raw(size_t length) {
  if (!ok_ || rest_.size() < length) {
    ok_ = false;
    return {};
  }
  const auto result = rest_.first(length);
  rest_ = rest_.subspan(length);
  return result;
}

uint64_t WireReader::number(size_t width) {
  uint64_t value = 0;
  const auto bytes = raw(width);
  for (size_t i = 0; i < bytes.size(); ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

std::span<const uint8_t> WireReader::bytes(size_t max) {
  const size_t length = u32();
  if (length > max) ok_ = false;
  return raw(length);
}

std::string WireReader::text(size_t max) {
  const auto b = bytes(max);
  return {b.begin(), b.end()};
}

// ---- Messages ------------------------------------------------------------------------------------------------------

FrameBytes encode(const Hello& hello) {
  WireWriter w(Message::hello);
  w.raw(hello.secret).u32(hello.wire).u32(hello.library).i32(hello.rank).i32(hello.nranks);
  w.u64(static_cast<uint64_t>(hello.pid)).text(hello.host, maxNameBytes);
  w.u32(hello.timeoutMs)
      .u32(hello.leftMs)
      .u8(hello.inHubProcess ? 1 : 0)
      .text(hello.hostId, maxNameBytes)
      .raw(hello.deviceId);
  return w.text(hello.settings, maxSettingsBytes).done();
}

bool decode(std::span<const uint8_t> body, Hello* hello) {
  WireReader r(body);
  const auto secret = r.raw(hello->secret.size());
  std::copy(secret.begin(), secret.end(), hello->secret.begin());
  hello->wire = r.u32();
  hello->library = r.u32();
  hello->rank = r.i32();
  hello->nranks = r.i32();
  hello->pid = static_cast<int64_t>(r.u64());
  hello->host = r.text(maxNameBytes);
  if (hello->wire != wireVersion) return r.ok();
  hello->timeoutMs = r.u32();
  hello->leftMs = r.u32();
  hello->inHubProcess = r.u8() != 0;
  hello->hostId = r.text(maxNameBytes);
  const auto device = r.raw(hello->deviceId.size());
  std::copy(device.begin(), device.end(), hello->deviceId.begin());
  hello->settings = r.text(maxSettingsBytes);
  return r.atEnd();
}

FrameBytes encode(const Welcome& welcome) {
  WireWriter w(Message::welcome);
  w.i32(welcome.nodes).i32(welcome.ranksPerNode);
  w.u64(static_cast<uint64_t>(welcome.hubPid)).text(welcome.hubHost, maxNameBytes);
  w.u32(static_cast<uint32_t>(welcome.peers.size()));
  for (size_t i = 0; i < welcome.peers.size(); ++i) {
    const PeerInfo& p = welcome.peers[i];
    w.i32(p.node).i32(p.localRank).u64(static_cast<uint64_t>(p.pid)).u8(welcome.inHubProcess[i] ? 1 : 0);
    w.text(p.hostId, maxNameBytes).text(p.host, maxNameBytes);
  }
  return w.done();
}

bool decode(std::span<const uint8_t> body, Welcome* welcome) {
  WireReader r(body);
  welcome->nodes = r.i32();
  welcome->ranksPerNode = r.i32();
  welcome->hubPid = static_cast<int64_t>(r.u64());
  welcome->hubHost = r.text(maxNameBytes);
  const uint32_t n = r.u32();
  if (n > static_cast<uint32_t>(maxRanks)) return false;
  for (uint32_t i = 0; i < n && r.ok(); ++i) {
    PeerInfo p;
    p.rank = static_cast<int>(i);
    p.node = r.i32();
    p.localRank = r.i32();
    p.pid = static_cast<int64_t>(r.u64());
    welcome->inHubProcess.push_back(r.u8() != 0);
    p.hostId = r.text(maxNameBytes);
    p.host = r.text(maxNameBytes);
    welcome->peers.push_back(std::move(p));
  }
  return r.atEnd();
}

FrameBytes encode(const Contribution& c) {
  WireWriter w(Message::contribution);
  w.u64(c.sequence)
      .u32(c.kind)
      .u32(c.timeoutMs)
      .u32(c.leftMs)
      .u64(c.launched)
      .text(c.what, maxNameBytes)
      .bytes(c.bytes);
  return w.u32(c.code).text(c.text, maxTextBytes).done();
}

bool decode(std::span<const uint8_t> body, Contribution* c) {
  WireReader r(body);
  c->sequence = r.u64();
  c->kind = r.u32();
  c->timeoutMs = r.u32();
  c->leftMs = r.u32();
  c->launched = r.u64();
  c->what = r.text(maxNameBytes);
  const auto bytes = r.bytes(maxGatherBytes);
  c->bytes.assign(bytes.begin(), bytes.end());
  c->code = r.u32();
  c->text = r.text(maxTextBytes);
  return r.atEnd() && c->kind <= Contribution::agree;
}

FrameBytes encode(const FailureReport& report) {
  WireWriter w(Message::report);
  w.u32(report.kind).u32(report.stageOrder).i32(report.missingRank).u64(report.epoch);
  return w.u32(report.argumentHash).u32(report.missingHash).text(report.text, maxReportBytes).done();
}

bool decode(std::span<const uint8_t> body, FailureReport* report) {
  WireReader r(body);
  report->kind = r.u32();
  report->stageOrder = r.u32();
  report->missingRank = r.i32();
  report->epoch = r.u64();
  report->argumentHash = r.u32();
  report->missingHash = r.u32();
  report->text = r.text(maxReportBytes);
  return r.atEnd() && report->kind >= FailureReport::timeout && report->kind <= FailureReport::waiting;
}

FrameBytes encodeRank(Message type, int rank) { return WireWriter(type).i32(rank).done(); }
FrameBytes encodeEmpty(Message type) { return WireWriter(type).done(); }

FrameBytes encodeError(Message type, mkResult_t code, const std::string& text) {
  return WireWriter(type).u32(static_cast<uint32_t>(code)).text(text, maxTextBytes).done();
}

// ---- Names ---------------------------------------------------------------------------------------------------------

std::string rankName(int rank, const std::string& host, int64_t pid) {
  return format("rank %d (host %s, pid %lld)", rank, host.c_str(), static_cast<long long>(pid));
}

std::string rankList(const std::vector<int>& ranks, size_t limit) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (text.size() > limit) return text + ",...";
    if (!text.empty()) text += ',';
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? "," : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace mk
