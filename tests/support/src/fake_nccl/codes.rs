//! The result codes that tests name.

/// `ncclSuccess`.
pub const SUCCESS: u32 = 0;
/// `ncclInvalidArgument`.
pub const INVALID_ARGUMENT: u32 = 4;
/// `ncclInvalidUsage`.
pub const INVALID_USAGE: u32 = 5;
/// `ncclInProgress`.
pub const IN_PROGRESS: u32 = 7;
