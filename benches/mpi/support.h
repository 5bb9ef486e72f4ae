/* Helpers of all programs. */
#ifndef SUPPORT_H
#define SUPPORT_H

double now(void); /* in seconds */
double median(double *values, int count);

/* Prints the reason and exits the process. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
