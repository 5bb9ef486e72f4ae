/* Stands in for the header of the same name of ROCm. */
#include <hip/hip_runtime.h>
