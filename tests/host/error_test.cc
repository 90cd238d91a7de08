// mk::format, fail and failErrno.
#include "host/error.h"

#include <cerrno>
#include <string>

#include "support/catch_compat.h"

TEST_CASE("format writes text of any length", "[error]") {
  CHECK(mk::format("%d of %s", 3, "four") == "3 of four");
  CHECK(mk::format("%s", "").empty());
  const std::string longText(100000, 'x');
  CHECK(mk::format("<%s>", longText.c_str()) == "<" + longText + ">");
}

TEST_CASE("fail throws code and text", "[error]") {
  try {
    mk::fail(mkErrorInvalidArgument, "rank %d of %d", 5, 4);
    FAIL("did not throw");
  } catch (const mk::Error& e) {
    CHECK(e.code() == mkErrorInvalidArgument);
    CHECK(std::string(e.what()) == "rank 5 of 4");
  }
}

TEST_CASE("failErrno appends the system's words", "[error]") {
  try {
    mk::failErrno(ENOENT, "cannot open \"x\"");
    FAIL("did not throw");
  } catch (const mk::Error& e) {
    CHECK(e.code() == mkErrorSystem);
    CHECK(std::string(e.what()) == "cannot open \"x\": No such file or directory");
  }
}
