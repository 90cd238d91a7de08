// A scratch directory that is gone with its object.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace test {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "mkernel-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + pattern);
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

  // Each returns the full path.
  std::string write(const std::string& name, const std::string& text) const {
    const std::string full = path_ + "/" + name;
    std::ofstream(full, std::ios::binary) << text;
    return full;
  }
  std::string makeFifo(const std::string& name) const {
    const std::string full = path_ + "/" + name;
    if (mkfifo(full.c_str(), 0600) != 0) throw std::runtime_error("mkfifo failed: " + full);
    return full;
  }

  // "" if there is no such file.
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path_ + "/" + name, std::ios::binary).rdbuf();
    return text.str();
  }

 private:
  std::string path_;
};

}  // namespace test
