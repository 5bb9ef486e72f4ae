use super::*;

fn collective(function: &str, data_type: u8, reduction: u8, root: u32, count: u64) -> CallHeader {
    let function = Function::named(function);
    CallHeader::Collective { function, data_type, reduction, root, count, is_grouped: root == 1023 }
}

#[test]
fn difference_names_functions_only_if_they_differ() {
    const NONE: u8 = CallHeader::NO_REDUCTION;
    let control = |call, length| CallHeader::Control { call, length };
    let (sum, scatter) = (collective("all_reduce", 7, 0, 0, 10), collective("scatter", 7, NONE, 0, 1));
    let grouped = "some of the ranks called ncclAllReduce in one group with the collective before it, and the others did not";
    for (one, other, text) in [
        (sum, collective("all_reduce", 7, 0, 0, 11), "the ranks called ncclAllReduce with different counts"),
        (
            sum,
            collective("all_reduce", 7, 2, 0, 10),
            "the ranks called ncclAllReduce with different reductions",
        ),
        (
            sum,
            collective("all_reduce", 8, 0, 0, 5),
            "the ranks called ncclAllReduce with different counts and data types",
        ),
        (sum, scatter, "the ranks called different functions"),
        (sum, control(ControlCall::Split, 8), "the ranks called different functions"),
        (
            control(ControlCall::Split, 8),
            control(ControlCall::Split, 9),
            "the ranks called ncclCommSplit with different arguments",
        ),
        (scatter, collective("scatter", 7, NONE, 3, 1), "the ranks called ncclScatter with different roots"),
        (sum, CallHeader::decode([sum.encode()[0] | u64::from(GROUPED) << 8, 10]), grouped),
    ] {
        assert_eq!([one.describe_difference(other), other.describe_difference(one)], [text; 2]);
    }
}

#[test]
fn header_of_every_kind_is_decoded_and_displayed() {
    for (header, text) in [
        (
            collective("all_reduce", 7, 2, 0, 1 << 40),
            "ncclAllReduce(count 1099511627776, ncclFloat32, ncclMax)",
        ),
        (
            collective("scatter", 7, CallHeader::NO_REDUCTION, 1023, 1),
            "ncclScatter(count 1, ncclFloat32, root 1023)",
        ),
        (
            CallHeader::of_elements(PeerCall::Recv, 3, DataType::Float32, 9),
            "ncclRecv(count 9, ncclFloat32, peer 3)",
        ),
        (CallHeader::of_bytes(PeerCall::PutSignal, 0, 40), "ncclPutSignal(40 bytes, peer 0)"),
        (CallHeader::of_bytes(PeerCall::WaitSignal, 1023, 0), "ncclWaitSignal(peer 1023)"),
        (CallHeader::Control { call: ControlCall::RegisterWindow, length: 48 }, "ncclCommWindowRegister"),
        (CallHeader::Unknown { number: 0x1234_5678_90ab_cdef }, "function 1311768467294899695"),
    ] {
        assert_eq!((CallHeader::decode(header.encode()), header.to_string()), (header, text.into()));
    }
}
