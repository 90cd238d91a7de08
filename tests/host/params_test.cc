// Reading of parameters: what parses, what does not, which source wins, and what the warnings say.  The last cases run this
// program again with an environment of their own, since a process reads its parameters once.
#include "host/params.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "support/catch_compat.h"
#include "support/child.h"
#include "support/temp.h"

namespace {

struct Reading {
  mk::Params params;
  std::vector<mk::ParamDescription> descriptions;
  std::vector<std::string> warnings;
};

Reading readAll(const std::vector<std::string>& environment, const std::string& conf = "") {
  Reading r;
  r.params = mk::readParams(environment, conf, "/x/conf", &r.descriptions, &r.warnings);
  return r;
}

mk::ParamDescription describe(const Reading& r, const std::string& name) {
  for (const mk::ParamDescription& d : r.descriptions)
    if (name == d.name) return d;
  FAIL("no description of " << name);
  return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("defaults are those of params.def", "[params]") {
  const Reading r = readAll({});
  CHECK(r.warnings.empty());
  CHECK(r.params.debug == "WARN");
  CHECK(r.params.timeoutMs == 30000);
  CHECK(r.params.heapMaxBytes == int64_t{68719476736});
  CHECK(r.params.loopbackReorder == 0.0);
  std::set<std::string> names;
  for (const mk::ParamDescription& d : r.descriptions) {
    INFO(d.name);
    CHECK(std::string(d.name).substr(0, 8) == "MKERNEL_");
    CHECK(d.value == d.defaultValue);
    CHECK(d.source == "default");
    CHECK_FALSE(std::string(d.help).empty());
    CHECK(names.insert(d.name).second);
  }
  CHECK(names.count("MKERNEL_CONF_FILE") == 1);
  CHECK(std::string(describe(r, "MKERNEL_HEAP_BYTES").type) == "int");
  CHECK(describe(r, "MKERNEL_HEAP_BYTES").defaultValue == "4194304");
  CHECK(std::string(describe(r, "MKERNEL_LOOPBACK_GBPS").type) == "float");
  CHECK(std::string(describe(r, "MKERNEL_NET").type) == "string");
}

TEST_CASE("integers are read strictly", "[params]") {
  struct Good {
    const char* text;
    int64_t value;
  };
  for (const Good& good :
       {Good{"0", 0}, Good{"17", 17}, Good{"4K", 4096}, Good{"4k", 4096}, Good{"3M", 3145728}, Good{"2G", 2147483648},
        Good{"9223372036854775807", INT64_MAX}, Good{"8589934591G", 8589934591 << 30}}) {
    INFO(good.text);
    const Reading r = readAll({std::string("MKERNEL_HEAP_BYTES=") + good.text});
    CHECK(r.warnings.empty());
    CHECK(r.params.heapBytes == good.value);
    CHECK(describe(r, "MKERNEL_HEAP_BYTES").source == "environment");
    CHECK(describe(r, "MKERNEL_HEAP_BYTES").value == std::to_string(good.value));
  }
  for (const char* bad : {"", " 1", "1 ", "x", "1x", "1KB", "1T", "-1", "+1", "1.5", "0x10", "9223372036854775808",
                          "8589934592G", "1e3", "K"}) {
    INFO(bad);
    const Reading r = readAll({std::string("MKERNEL_HEAP_BYTES=") + bad});
    REQUIRE(r.warnings.size() == 1);
    CHECK(contains(r.warnings[0], "MKERNEL_HEAP_BYTES=\"" + std::string(bad) + "\""));
    CHECK(contains(r.warnings[0], "an integer from 0"));
    CHECK(contains(r.warnings[0], "4194304 (default) stands"));
    CHECK(r.params.heapBytes == 4194304);
    CHECK(describe(r, "MKERNEL_HEAP_BYTES").source == "default");
  }
}

TEST_CASE("a default below 0 may be asked for, and no other number below 0", "[params]") {
  CHECK(readAll({"MKERNEL_IB_GID_INDEX=3"}).params.ibGidIndex == 3);
  const Reading chosen = readAll({"MKERNEL_IB_GID_INDEX=-1"});
  CHECK(chosen.warnings.empty());
  CHECK(describe(chosen, "MKERNEL_IB_GID_INDEX").source == "environment");
  const Reading bad = readAll({"MKERNEL_IB_GID_INDEX=-2"});
  REQUIRE(bad.warnings.size() == 1);
  CHECK(contains(bad.warnings[0], ", or -1; -1 (default) stands"));
}

TEST_CASE("decimal numbers are read strictly", "[params]") {
  for (const char* good : {"0", "0.25", "1e-3", "12"}) {
    INFO(good);
    const Reading r = readAll({std::string("MKERNEL_LOOPBACK_REORDER=") + good});
    CHECK(r.warnings.empty());
    CHECK(r.params.loopbackReorder == std::stod(good));
  }
  for (const char* bad : {"", "0,5", "nan", "inf", "-0.5", "0.5x", "1e999"}) {
    INFO(bad);
    const Reading r = readAll({std::string("MKERNEL_LOOPBACK_REORDER=") + bad});
    REQUIRE(r.warnings.size() == 1);
    CHECK(contains(r.warnings[0], "MKERNEL_LOOPBACK_REORDER"));
    CHECK(contains(r.warnings[0], "a decimal number from 0"));
    CHECK(r.params.loopbackReorder == 0.0);
  }
}

TEST_CASE("the environment wins over the configuration file", "[params]") {
  const std::string conf =
      "# comment\n"
      "\n"
      "  MKERNEL_TIMEOUT_MS = 111 \r\n"
      "MKERNEL_NET=loopback\n"
      "MKERNEL_NET=efa\n"
      "MKERNEL_HEAP_BYTES=1M";
  Reading r = readAll({"MKERNEL_TIMEOUT_MS=222", "PATH=/bin", "MKERNEL_TIMEOUT_MS=333"}, conf);
  CHECK(r.warnings.empty());
  CHECK(r.params.timeoutMs == 222);
  CHECK(describe(r, "MKERNEL_TIMEOUT_MS").source == "environment");
  CHECK(r.params.net == "efa");
  CHECK(describe(r, "MKERNEL_NET").source == "/x/conf");
  CHECK(describe(r, "MKERNEL_NET").defaultValue.empty());
  CHECK(r.params.heapBytes == 1048576);

  r = readAll({"MKERNEL_TIMEOUT_MS=soon"}, conf);
  REQUIRE(r.warnings.size() == 1);
  CHECK(contains(r.warnings[0], "111 (/x/conf) stands"));
  CHECK(r.params.timeoutMs == 111);
}

TEST_CASE("faults of the configuration file name file and line", "[params]") {
  const Reading r =
      readAll({}, "MKERNEL_TIMEOUT_MS=1\nnonsense\nMKERNEL_TIMOUT_MS=5\nMKERNEL_CONF_FILE=/y\nMKERNEL_HEAP_BYTES=z\n");
  REQUIRE(r.warnings.size() == 4);
  CHECK(contains(r.warnings[0], "/x/conf:2: \"nonsense\""));
  CHECK(
      contains(r.warnings[1], "/x/conf:3: there is no parameter MKERNEL_TIMOUT_MS; the nearest is MKERNEL_TIMEOUT_MS"));
  CHECK(contains(r.warnings[2], "/x/conf:4: MKERNEL_CONF_FILE"));
  CHECK(contains(r.warnings[3], "/x/conf:5: MKERNEL_HEAP_BYTES=\"z\""));
  CHECK(r.params.timeoutMs == 1);
  CHECK(r.params.confFile.empty());
}

TEST_CASE("unknown variables are warned about once, with the nearest name", "[params]") {
  const Reading r = readAll({"MKERNEL_DEBG=INFO", "MKERNEL_debug=INFO", "MKERNEL_DEBG=TRACE",
                             "MKERNEL_LOOPBACK_JITTER=1", "MKERNEL_TEST_LONG=1", "NCCL_DEBUG=INFO", "MKERNEL"});
  REQUIRE(r.warnings.size() == 3);
  CHECK(contains(r.warnings[0], "MKERNEL_DEBG; the nearest is MKERNEL_DEBUG"));
  CHECK(contains(r.warnings[1], "MKERNEL_debug; the nearest is MKERNEL_DEBUG"));
  CHECK(contains(r.warnings[2], "the nearest is MKERNEL_LOOPBACK_JITTER_US"));
}

// ---- In a process of its own --------------------------------------------------------------------------------------

TEST_CASE("child: print parameters", "[.child]") {
  mk::params();
  mk::params();
  for (const mk::ParamDescription& d : mk::paramDescriptions())
    if (d.source != "default") std::printf("%s=%s (%s)\n", d.name, d.value.c_str(), d.source.c_str());
}

TEST_CASE("a process reads environment and configuration file once and warns once", "[params]") {
  const test::TempDir dir;
  const std::string conf = dir.write("my.conf", "MKERNEL_TIMEOUT_MS=7\nMKERNEL_NET=loopback\n");
  const test::Child child =
      test::runSelf("child: print parameters", {"MKERNEL_CONF_FILE=" + conf, "MKERNEL_NET=efa", "MKERNEL_TIMEOT_MS=1"});
  INFO(child.out);
  INFO(child.err);
  CHECK(child.status == 0);
  CHECK(contains(child.out, "MKERNEL_TIMEOUT_MS=7 (" + conf + ")\n"));
  CHECK(contains(child.out, "MKERNEL_NET=efa (environment)\n"));
  CHECK(contains(child.out, "MKERNEL_CONF_FILE=" + conf + " (environment)\n"));
  CHECK(std::count(child.err.begin(), child.err.end(), '\n') == 1);
  CHECK(contains(child.err, "MKERNEL WARN PARAM host/params.cc:"));
  CHECK(contains(child.err, "MKERNEL_TIMEOT_MS; the nearest is MKERNEL_TIMEOUT_MS"));
}

TEST_CASE("the file in the home directory is used where none is named", "[params]") {
  const test::TempDir dir;
  const std::string conf = dir.write(".mkernel.conf", "MKERNEL_TIMEOUT_MS=8\n");
  test::Child child = test::runSelf("child: print parameters", {"HOME=" + dir.path()});
  CHECK(child.err.empty());
  CHECK(contains(child.out, "MKERNEL_TIMEOUT_MS=8 (" + conf + ")\n"));

  // A file asked for by name never falls back.
  child = test::runSelf("child: print parameters", {"HOME=" + dir.path(), "MKERNEL_CONF_FILE=" + dir.path() + "/none"});
  CHECK_FALSE(contains(child.out, "TIMEOUT"));
  CHECK(contains(child.err, dir.path() + "/none\" (No such file or directory)"));

  // Neither a directory nor a FIFO is read, or waited for.
  child = test::runSelf("child: print parameters", {"MKERNEL_CONF_FILE=" + dir.path()});
  CHECK(contains(child.err, "(Is a directory)"));
  child = test::runSelf("child: print parameters", {"MKERNEL_CONF_FILE=" + dir.makeFifo("fifo")});
  CHECK(contains(child.err, "(Invalid argument)"));
}
