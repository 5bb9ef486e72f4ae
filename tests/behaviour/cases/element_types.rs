//! Every element type, including the types of the features `half` and `float8`.

use std::fmt::Debug;

use libnccl::buffer::{AnyBuffer, AnyElement};
use libnccl::{Communicator, Config, DataType, Element, Nccl, ReduceOp, Slice, SliceMut};

use super::common::{STREAM, cases, on_threads};

cases! {
    every_type_is_reduced,
}

/// Checks a type of the program, also as one that is known at run time, and in a view that is divided. Three ranks have the scalars
/// 1, 2 and 3, passed by value and in memory. `of` converts small numbers to the type.
fn check<T: Element + PartialEq + Debug>(comm: &Communicator, of: fn(u8) -> T) {
    let numbers = |numbers: [u8; 4]| numbers.map(of);
    let mut sums = numbers([1, 2, 0, 1]);
    comm.all_reduce_in_place(&mut sums, ReduceOp::Sum, STREAM).unwrap();
    assert_eq!(sums, numbers([3, 6, 0, 3]), "{}", T::DATA_TYPE);

    let (send, mut sums) = (numbers([1, 2, 0, 1]), numbers([0; 4]));
    let recv: SliceMut<'_, AnyElement> = SliceMut::from(&mut sums).into_any();
    assert_eq!((recv.data_type(), recv.len()), (T::DATA_TYPE, 4));
    comm.all_reduce(Slice::from(&send).into_any(), recv, ReduceOp::Sum, STREAM).unwrap();
    assert_eq!(sums, numbers([3, 6, 0, 3]), "{}", T::DATA_TYPE);

    sums = numbers([1, 1, 1, comm.rank() as u8]);
    let (first, second) = SliceMut::from(&mut sums).into_any().split_at_mut(3).unwrap();
    assert_eq!((first.len(), second.len()), (3, 1));
    let parts = |middle| SliceMut::from(&mut [0_u8; 4]).split_at_mut(middle).map(|(a, b)| (a.len(), b.len()));
    assert_eq!([parts(0), parts(4), parts(5)], [Some((0, 4)), Some((4, 0)), None]);
    comm.all_reduce_in_place(first, ReduceOp::Sum, STREAM).unwrap();
    comm.broadcast_in_place(second, 1, STREAM).unwrap();
    assert_eq!(sums, numbers([3, 3, 3, 1]), "{}", T::DATA_TYPE);

    let scalar = [of(comm.rank() as u8 + 1)];
    for op in [comm.pre_mul_sum(scalar[0]).unwrap(), comm.pre_mul_sum_device(&scalar).unwrap()] {
        let mut sums = numbers([0, 1, 0, 0]);
        comm.all_reduce_in_place(&mut sums, &op, STREAM).unwrap();
        assert_eq!(sums, numbers([0, 6, 0, 0]), "{}", T::DATA_TYPE);
    }
    // SAFETY: all bytes of the scalar, which has no padding.
    let bytes = unsafe { std::slice::from_raw_parts(scalar.as_ptr().cast::<u8>(), size_of::<T>()) };
    let by_value = comm.pre_mul_sum_any(T::DATA_TYPE, bytes).unwrap();
    let in_memory = comm.pre_mul_sum_device(Slice::from(&scalar).into_any()).unwrap();
    for op in [by_value, in_memory] {
        let mut sums = numbers([0, 1, 0, 0]);
        comm.all_reduce_in_place(SliceMut::from(&mut sums).into_any(), &op, STREAM).unwrap();
        assert_eq!(sums, numbers([0, 6, 0, 0]), "{}", T::DATA_TYPE);
    }
}

fn every_type_is_reduced(nccl: &Nccl) {
    on_threads(nccl, 3, &Config::new(), |comm| {
        check(&comm, |number| number as i8);
        check(&comm, |number| number);
        check(&comm, i32::from);
        check(&comm, u32::from);
        check(&comm, i64::from);
        check(&comm, u64::from);
        check(&comm, f32::from);
        check(&comm, f64::from);
        #[cfg(feature = "half")]
        {
            check(&comm, |number| half::f16::from_f32(number.into()));
            check(&comm, |number| half::bf16::from_f32(number.into()));
        }
        #[cfg(feature = "float8")]
        {
            check(&comm, |number| float8::F8E4M3::from_f32(number.into()));
            check(&comm, |number| float8::F8E5M2::from_f32(number.into()));
        }
        let (from, mut to) = ([1_u8, 0, 0, 0], [0_u8; 4]);
        let to_numbers = AnyBuffer::new(DataType::Int32, &mut to);
        comm.all_reduce(AnyBuffer::new(DataType::Int32, &from), to_numbers, ReduceOp::Sum, STREAM).unwrap();
        assert_eq!(to, [3, 0, 0, 0]);
    });
}
