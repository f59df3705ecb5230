package seccomp

// #include <stdlib.h>
// #ifdef __GLIBC__
// #include <malloc.h>
// #endif
// static void trim(void) {
// #ifdef __GLIBC__
// 	malloc_trim(0);
// #endif
// }
import "C"

// trim returns the C library's free memory to the kernel. libseccomp takes a megabyte to compile
// a filter, and nothing else here needs the C library's memory.
func trim() { C.trim() }
