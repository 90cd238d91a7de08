/* A library that is gone when the plugin linked with it is loaded: its soname is not the name of its file. */
int mkStubNowhereDefined(void);
__attribute__((visibility("default"))) int mkStubNowhereDefined(void) { return 0; }
