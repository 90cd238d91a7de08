// Framed messages over a non-blocking socket: {magic, type, length} and a body of bounded size.  Used by the hub and by the
// client; neither ever blocks in here.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host/socket.h"

namespace mk {

struct Frame {
  uint32_t type = 0;
  std::vector<uint8_t> body;
};

// A whole frame as it goes over the wire; shared, because the hub sends one to many.
using FrameBytes = std::shared_ptr<const std::vector<uint8_t>>;

inline constexpr uint32_t frameMagic = 0x31626b6d;  // "mkb1"
inline constexpr size_t frameHeaderBytes = 12;

class FramedSocket {
 public:
  enum class State { open, ended, broken, malformed };

  FramedSocket(Fd fd, size_t maxBody) : fd_(std::move(fd)), maxBody_(maxBody) {}

  // Reads what is there, at most about 256 KiB or maxFrames frames, and appends the complete frames.  Anything but `open` is
  // final, and problem() says why.
  State receive(std::vector<Frame>* frames, size_t maxFrames);
  // The frame that has begun to arrive; type 0 if none has.
  uint32_t partialType() const { return headerFilled_ == header_.size() ? type_ : 0; }
  std::span<const uint8_t> partialBody() const { return {body_.data(), bodyFilled_}; }

  void queue(FrameBytes frame) {
    if (writable_) out_.push_back(std::move(frame));
  }
  // Writes as much as the socket takes.  A broken connection drops what is queued; receive() then tells.
  void flush();
  bool wantsWrite() const { return !out_.empty(); }
  // No more will be sent: the other side reads the end of the stream.
  void shutdownWrite();

  void setMaxBody(size_t maxBody) { maxBody_ = maxBody; }
  int fd() const { return fd_.get(); }
  const std::string& problem() const { return problem_; }

 private:
  State parseHeader();
  State finish(State state, std::string problem);

  Fd fd_;
  size_t maxBody_;
  State state_ = State::open;
  std::string problem_;
  std::array<uint8_t, frameHeaderBytes> header_ = {};
  size_t headerFilled_ = 0;
  uint32_t type_ = 0;
  size_t bodyLength_ = 0, bodyFilled_ = 0;
  std::vector<uint8_t> body_;  // grows as bytes arrive, not by what the header promises
  std::deque<FrameBytes> out_;
  size_t outDone_ = 0;  // bytes of out_.front() already written
  bool writable_ = true;
};

}  // namespace mk
