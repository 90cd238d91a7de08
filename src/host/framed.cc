// See framed.h.
#include "host/framed.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "host/error.h"

namespace mk {
namespace {

constexpr size_t readBudget = 256 << 10;  // per receive(), so that one busy connection cannot starve the others
constexpr size_t bodyStep = 64 << 10;
constexpr size_t maxVectors = 64;

uint32_t load32(const uint8_t* p) {
  return p[0] | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
         static_cast<uint32_t>(p[3]) << 24;
}

}  // namespace

FramedSocket::State FramedSocket::finish(State state, std::string problem) {
  state_ = state;
  problem_ = std::move(problem);
  return state;
}

FramedSocket::State FramedSocket::parseHeader() {
  // What can be refused is refused at its first bytes.
  const size_t magicBytes = std::min<size_t>(headerFilled_, 4);
  for (size_t i = 0; i < magicBytes; ++i)
    if (header_[i] != static_cast<uint8_t>(frameMagic >> (8 * i)))
      return finish(State::malformed, "sent bytes that are no message of this library");
  if (headerFilled_ < header_.size()) return State::open;
  type_ = load32(&header_[4]);
  bodyLength_ = load32(&header_[8]);
  bodyFilled_ = 0;
  body_.clear();
  if (bodyLength_ > maxBody_)
    return finish(State::malformed,
                  format("announced a message of %zu bytes, the limit is %zu", bodyLength_, maxBody_));
  return State::open;
}

FramedSocket::State FramedSocket::receive(std::vector<Frame>* frames, size_t maxFrames) {
  size_t budget = readBudget;
  size_t taken = 0;
  while (state_ == State::open && budget > 0 && taken < maxFrames) {
    uint8_t* target = nullptr;
    size_t wanted = 0;
    if (headerFilled_ < header_.size()) {
      target = header_.data() + headerFilled_;
      wanted = header_.size() - headerFilled_;
    } else {
      wanted = std::min(bodyLength_ - bodyFilled_, bodyStep);
      if (body_.size() < bodyFilled_ + wanted) body_.resize(bodyFilled_ + wanted);
      target = body_.data() + bodyFilled_;
    }
    if (wanted > 0) {
      const ssize_t n = recv(fd_.get(), target, wanted, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (n < 0) return finish(State::broken, errnoText(errno));
      if (n == 0) return finish(State::ended, "end of stream");
      budget -= std::min(budget, static_cast<size_t>(n));
      if (headerFilled_ < header_.size()) {
        headerFilled_ += static_cast<size_t>(n);
        if (parseHeader() != State::open) break;
        if (headerFilled_ < header_.size()) continue;
      } else {
        bodyFilled_ += static_cast<size_t>(n);
      }
    }
    if (bodyFilled_ == bodyLength_) {
      body_.resize(bodyLength_);
      frames->push_back({type_, std::move(body_)});
      body_ = {};
      headerFilled_ = 0;
      bodyLength_ = bodyFilled_ = 0;
      ++taken;
    }
  }
  return state_;
}

void FramedSocket::flush() {
  while (writable_ && !out_.empty()) {
    std::array<iovec, maxVectors> vectors = {};
    size_t count = 0;
    for (const FrameBytes& frame : out_) {
      if (count == vectors.size()) break;
      const size_t skip = count == 0 ? outDone_ : 0;
      vectors[count++] = {const_cast<uint8_t*>(frame->data()) + skip, frame->size() - skip};
    }
    msghdr message = {};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM)) return;
    if (n < 0) {
      writable_ = false;
      out_.clear();
      return;
    }
    outDone_ += static_cast<size_t>(n);
    while (!out_.empty() && outDone_ >= out_.front()->size()) {
      outDone_ -= out_.front()->size();
      out_.pop_front();
    }
  }
}

void FramedSocket::shutdownWrite() {
  writable_ = false;
  out_.clear();
  if (fd_) shutdown(fd_.get(), SHUT_WR);
}

}  // namespace mk
