// Lets Verilator's waveform writer go on when its file cannot be written.
//
// Its check of the file position would end the program. Whether the file is complete is checked
// when it is closed.

#ifndef NEARMEM_STORED_WAVEFORM_CHECKS_H
#define NEARMEM_STORED_WAVEFORM_CHECKS_H

#include "fstcpp/fstcpp_assertion.h"

#undef FST_DCHECK_EQ
#define FST_DCHECK_EQ(a, b)

#endif
