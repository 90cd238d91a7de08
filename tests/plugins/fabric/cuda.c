/* Of the CUDA driver what the efa plugin asks; its "GPU memory" is the host's. */
int cuPointerGetAttribute(void* data, int attribute, unsigned long long pointer);

int cuPointerGetAttribute(void* data, int attribute, unsigned long long pointer) {
  if (attribute != 9 || pointer == 0) return 1; /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
  *(int*)data = 3;
  return 0;
}
