/* Stands in for the header of the same name of ROCm, which RCCL's header includes but takes nothing from. */
