#include "host/shared_memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "host/error.h"

namespace mk {

namespace {

// A limit on the size of files (RLIMIT_FSIZE, "ulimit -f") covers memfd too, and beyond it the kernel sends SIGXFSZ, which ends
// a process that does not expect it.  Held back, it is an error like any other.
class FileSizeSignal {
 public:
  FileSizeSignal() {
    sigset_t pending;
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    sigpending(&pending);
    ours_ = sigismember(&pending, SIGXFSZ) == 0;  // else it is the application's
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~FileSizeSignal() {
    const timespec none = {};
    if (ours_)
      while (sigtimedwait(&set_, nullptr, &none) < 0 && errno == EINTR) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignal(const FileSizeSignal&) = delete;
  FileSizeSignal& operator=(const FileSizeSignal&) = delete;

 private:
  sigset_t set_ = {}, before_ = {};
  bool ours_ = false;
};

}  // namespace

SharedMemory::SharedMemory(UniqueFd fd, uint64_t bytes, std::string name, bool created)
    : fd_(std::move(fd)), bytes_(bytes), name_(std::move(name)), created_(created) {
  void* base = mmap(nullptr, bytes_, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
  if (base == MAP_FAILED)
    failErrno(errno, format("cannot map %llu bytes of address space for %s (lower MKERNEL_HEAP_MAX_BYTES?)",
                            static_cast<unsigned long long>(bytes_), name_.c_str()));
  base_ = static_cast<char*>(base);
  // A forked child must not write what the parent's peers read, nor keep its pages alive.
  madvise(base_, bytes_, MADV_DONTFORK);
}

SharedMemory::~SharedMemory() { munmap(base_, bytes_); }

std::shared_ptr<SharedMemory> SharedMemory::create(const std::string& name, uint64_t bytes) {
  const FileSizeSignal held;
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!fd) failErrno(errno, format("cannot create shared memory for %s", name.c_str()));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    failErrno(errno,
              format("cannot set the size of %s to %llu bytes", name.c_str(), static_cast<unsigned long long>(bytes)));
  return std::shared_ptr<SharedMemory>(new SharedMemory(std::move(fd), bytes, name, true));
}

std::shared_ptr<SharedMemory> SharedMemory::attach(UniqueFd fd, uint64_t bytes, const std::string& name) {
  return std::shared_ptr<SharedMemory>(new SharedMemory(std::move(fd), bytes, name, false));
}

void SharedMemory::back(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  // Taken now: a page fault that finds no memory would kill the process later.
  const FileSizeSignal held;
  int err = 0;
  do {
    err = posix_fallocate(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (err == EINTR);
  if (err != 0)
    failErrno(err, format("no memory for %llu bytes of %s", static_cast<unsigned long long>(bytes), name_.c_str()));
  open(offset, bytes);
}

void SharedMemory::open(uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  if (mprotect(base_ + offset, bytes, PROT_READ | PROT_WRITE) != 0)
    failErrno(errno, format("cannot open %llu bytes of %s", static_cast<unsigned long long>(bytes), name_.c_str()));
}

}  // namespace mk
