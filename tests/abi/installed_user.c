/* A program as a user of an installed library writes it; installed_test.py compiles it with the flags of pkg-config.  Prints
 * the version and, one a line, the transports that are usable and where they were found.
 */
#include <mkernel.h>
#include <stdio.h>

int main(void) {
  mkTransportInfo_t info;
  int version = 0, count = 0, i;
  if (mkGetVersion(&version) != mkSuccess || mkTransportCount(&count) != mkSuccess) return 1;
  printf("version %d\n", version);
  for (i = 0; i < count; ++i) {
    MK_INIT(&info, MK_ID_TRANSPORT_INFO);
    if (mkTransportQuery(i, &info) != mkSuccess) {
      fprintf(stderr, "%s\n", mkGetLastError(NULL));
      return 1;
    }
    printf("transport %s %s: %s\n", info.name, info.path, info.status[0] == '\0' ? "usable" : info.status);
  }
  return 0;
}
