// Reads the parameters of params.def from the environment and one configuration file.  The table below and the structure
// in params.h are both made from params.def, so a parameter is declared in one place.
#include "host/params.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <set>
#include <string_view>
#include <variant>

#include "host/error.h"
#include "host/log.h"

namespace mk {
namespace {

using Member = std::variant<int64_t Params::*, double Params::*, bool Params::*, std::string Params::*>;

struct Entry {
  const char* name;
  const char* type;
  const char* help;
  Member member;
};

const Entry entries[] = {
#define MK_PARAM_INT(member, name, value, help) {name, "int", help, &Params::member},
#define MK_PARAM_FLOAT(member, name, value, help) {name, "float", help, &Params::member},
#define MK_PARAM_BOOL(member, name, value, help) {name, "bool", help, &Params::member},
#define MK_PARAM_STRING(member, name, value, help) {name, "string", help, &Params::member},
#include "host/params.def"
#undef MK_PARAM_INT
#undef MK_PARAM_FLOAT
#undef MK_PARAM_BOOL
#undef MK_PARAM_STRING
};

constexpr std::string_view prefix = "MKERNEL_";
constexpr std::string_view testPrefix = "MKERNEL_TEST_";
constexpr std::string_view confFileName = "MKERNEL_CONF_FILE";
constexpr off_t maxConfBytes = 1 << 20;

const Entry* findEntry(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(entries), std::end(entries), [&](const Entry& e) { return name == e.name; });
  return found == std::end(entries) ? nullptr : found;
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return result;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// Levenshtein distance.
size_t editDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

const char* nearestName(std::string_view name) {
  const std::string wanted = upper(name);
  const auto* nearest = std::min_element(std::begin(entries), std::end(entries), [&](const Entry& a, const Entry& b) {
    return editDistance(wanted, a.name) < editDistance(wanted, b.name);
  });
  return nearest->name;
}

bool parse(std::string_view text, int64_t* result) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return false;
  const std::string suffix = upper(text.substr(static_cast<size_t>(end - text.data())));
  int shift = 0;
  if (suffix == "K")
    shift = 10;
  else if (suffix == "M")
    shift = 20;
  else if (suffix == "G")
    shift = 30;
  else if (!suffix.empty())
    return false;
  if (value > std::numeric_limits<int64_t>::max() >> shift) return false;
  *result = value << shift;
  return true;
}

bool parse(std::string_view text, double* result) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0) return false;
  *result = value;
  return true;
}

bool parse(std::string_view text, bool* result) {
  const std::string word = upper(text);
  *result = word == "1" || word == "TRUE" || word == "ON";
  return *result || word == "0" || word == "FALSE" || word == "OFF";
}

bool parse(std::string_view text, std::string* result) {
  *result = text;
  return true;
}

const char* legalValues(const Member& member) {
  constexpr const char* texts[] = {
      "an integer from 0, with an optional suffix K, M or G (2^10, 2^20, 2^30)",
      "a decimal number from 0",
      "0, 1, true, false, on, off",
      "any text",
  };
  return texts[member.index()];
}

std::string print(int64_t value) { return std::to_string(value); }
std::string print(double value) { return format("%g", value); }
std::string print(bool value) { return value ? "1" : "0"; }
std::string print(const std::string& value) { return value; }

std::string valueOf(const Params& params, const Member& member) {
  return std::visit([&](auto pointer) { return print(params.*pointer); }, member);
}

// One reading of all sources, later ones over earlier ones.
class Reader {
 public:
  explicit Reader(std::vector<std::string>* warnings) : warnings_(warnings), sources_(std::size(entries), "default") {}

  void readFile(std::string_view text, const std::string& path) {
    int line = 0;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view content = trim(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
      const std::string place = format("%s:%d", path.c_str(), ++line);
      if (content.empty() || content[0] == '#') continue;
      const size_t equals = content.find('=');
      if (equals == std::string_view::npos) {
        warn(place + ": \"" + std::string(content) + "\" is ignored; legal are NAME=value, # comments and empty lines");
        continue;
      }
      const std::string_view name = trim(content.substr(0, equals));
      if (name == confFileName)
        warn(place + ": " + std::string(name) + " is ignored here; only the environment can set it");
      else
        set(name, trim(content.substr(equals + 1)), path, place);
    }
  }

  void readEnvironment(const std::vector<std::string>& environment) {
    std::set<std::string_view> seen;  // of two definitions the first counts, as with getenv()
    for (const std::string_view definition : environment) {
      if (definition.substr(0, prefix.size()) != prefix || definition.substr(0, testPrefix.size()) == testPrefix)
        continue;
      const size_t equals = definition.find('=');
      if (equals == std::string_view::npos || !seen.insert(definition.substr(0, equals)).second) continue;
      set(definition.substr(0, equals), definition.substr(equals + 1), "environment", "environment");
    }
  }

  const Params& params() const { return params_; }

  std::vector<ParamDescription> descriptions() const {
    const Params defaults;
    std::vector<ParamDescription> result;
    for (size_t i = 0; i < std::size(entries); ++i) {
      const Entry& e = entries[i];
      result.push_back({e.name, e.type, valueOf(defaults, e.member), valueOf(params_, e.member), sources_[i], e.help});
    }
    return result;
  }

 private:
  void warn(std::string text) { warnings_->push_back(std::move(text)); }
  std::string orNegative(const Member& member) const {
    const std::string value = valueOf(defaults_, member);
    return value[0] == '-' ? ", or " + value : "";
  }

  void set(std::string_view name, std::string_view text, const std::string& source, const std::string& place) {
    const Entry* entry = findEntry(name);
    if (entry == nullptr) {
      warn(place + ": there is no parameter " + std::string(name) + "; the nearest is " + nearestName(name));
      return;
    }
    const auto assign = [&](auto pointer) {
      auto value = params_.*pointer;
      // The default is legal also where it is none of the others, as -1 for "chosen".
      const bool good = parse(text, &value) || print(defaults_.*pointer) == text;
      if (good) params_.*pointer = value;
      return good;
    };
    std::string& oldSource = sources_[static_cast<size_t>(entry - entries)];
    if (std::visit(assign, entry->member))
      oldSource = source;
    else
      warn(place + ": " + entry->name + "=\"" + std::string(text) + "\" is ignored; legal is " +
           legalValues(entry->member) + orNegative(entry->member) + "; " + valueOf(params_, entry->member) + " (" +
           oldSource + ") stands");
  }

  std::vector<std::string>* warnings_;
  Params params_;
  const Params defaults_;
  std::vector<std::string> sources_;  // by index in entries
};

// Reads a regular file.  Returns 0, or an errno value.
int readTextFile(const std::string& path, std::string* text) {
  // O_NONBLOCK: opening a FIFO by mistake must not hang.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return errno;
  struct stat info = {};
  int error = fstat(fd, &info) != 0 ? errno : 0;
  if (error == 0 && S_ISDIR(info.st_mode)) error = EISDIR;
  if (error == 0 && !S_ISREG(info.st_mode)) error = EINVAL;
  if (error == 0 && info.st_size > maxConfBytes) error = EFBIG;
  char buffer[4096];
  while (error == 0 && text->size() <= static_cast<size_t>(maxConfBytes)) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n == 0) break;
    if (n > 0)
      text->append(buffer, static_cast<size_t>(n));
    else if (errno != EINTR)
      error = errno;
  }
  close(fd);
  return error;
}

struct Loaded {
  Params params;
  std::vector<ParamDescription> descriptions;
  std::vector<std::string> warnings;
};

Loaded* load() {
  const int savedErrno = errno;  // the first line of the log may be what reads the parameters
  auto* loaded = new Loaded;
  std::vector<std::string> environment;
  std::string home;
  std::string path;
  // In a program with raised privileges whoever starts it must not choose its files and plugins.
  if (getauxval(AT_SECURE) == 0) {
    for (char** definition = environ; definition != nullptr && *definition != nullptr; ++definition)
      environment.emplace_back(*definition);
    const char* value = std::getenv("HOME");
    if (value != nullptr) home = value;
    value = std::getenv(std::string(confFileName).c_str());
    if (value != nullptr) path = value;
  }
  std::string text;
  if (!path.empty()) {
    const int error = readTextFile(path, &text);
    if (error != 0) {
      loaded->warnings.push_back(format("MKERNEL_CONF_FILE: cannot read \"%s\" (%s); no configuration file is used",
                                        path.c_str(), strerror(error)));
      text.clear();
    }
  } else {
    std::vector<std::string> candidates;
    if (!home.empty()) candidates.push_back(home + "/.mkernel.conf");
    candidates.emplace_back("/etc/mkernel.conf");
    for (const std::string& candidate : candidates) {
      text.clear();
      const int error = readTextFile(candidate, &text);
      if (error == ENOENT || error == ENOTDIR) continue;
      path = candidate;
      if (error == 0) break;
      loaded->warnings.push_back(format("cannot read the configuration file \"%s\" (%s); no configuration file is used",
                                        candidate.c_str(), strerror(error)));
      text.clear();
      break;
    }
  }
  loaded->params = readParams(environment, text, path, &loaded->descriptions, &loaded->warnings);
  errno = savedErrno;
  return loaded;
}

// Lives as long as the process: threads of the library may read parameters while static objects are being destroyed.
const Loaded& loadedParams() {
  static const Loaded* const loaded = load();
  return *loaded;
}

}  // namespace

Params readParams(const std::vector<std::string>& environment, const std::string& confText, const std::string& confPath,
                  std::vector<ParamDescription>* descriptions, std::vector<std::string>* warnings) {
  Reader reader(warnings);
  reader.readFile(confText, confPath);
  reader.readEnvironment(environment);
  *descriptions = reader.descriptions();
  return reader.params();
}

const Params& params() {
  const Loaded& loaded = loadedParams();
  // The log reads its settings through params(), so the warnings are written only after the values are in place.
  static std::atomic<bool> warned = false;
  if (!warned.load(std::memory_order_relaxed) && !warned.exchange(true, std::memory_order_relaxed))
    for (const std::string& text : loaded.warnings) MK_WARN(param, "%s", text.c_str());
  return loaded.params;
}

const std::vector<ParamDescription>& paramDescriptions() {
  params();
  return loadedParams().descriptions;
}

}  // namespace mk
