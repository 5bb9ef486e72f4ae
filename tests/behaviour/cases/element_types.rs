//! Every element type, including the types of the features `half` and `float8`, with numbers that all of them represent.

use std::fmt::Debug;

use libnccl::buffer::{AnyBuffer, AnyElement};
use libnccl::{Communicator, Element, Nccl, ReduceOp, Slice, SliceMut};

use super::common::{STREAM, cases, on_threads};

cases! {
    every_type_reduction_is_exact,
    every_type_pre_mul_sum_is_exact,
    every_runtime_type_is_exact,
}

/// A number of elements that is no multiple of the ranks, nor of a vector register's lanes.
const COUNT: usize = 1003;

trait Small: Element + PartialEq + Debug {
    /// Returns a quarter of a number of at most four significant bits; integers are rounded down.
    fn quarters(number: u8) -> Self;

    /// Returns the number itself.
    fn of(number: u8) -> Self {
        Self::quarters(4 * number)
    }
}

macro_rules! small {
    ($($(#[$feature:meta])* $type:ty: |$number:ident| $convert:expr;)*) => {
        $(
            $(#[$feature])*
            impl Small for $type {
                fn quarters($number: u8) -> Self {
                    $convert
                }
            }
        )*

        /// Calls a generic function for every type.
        macro_rules! for_every_type {
            ($function:ident($comm:expr)) => {{
                $(
                    $(#[$feature])*
                    $function::<$type>($comm);
                )*
            }};
        }
    };
}

small! {
    i8: |number| (number / 4) as Self;
    u8: |number| number / 4;
    i32: |number| (number / 4).into();
    u32: |number| (number / 4).into();
    i64: |number| (number / 4).into();
    u64: |number| (number / 4).into();
    f32: |number| Self::from(number) / 4.0;
    f64: |number| Self::from(number) / 4.0;
    #[cfg(feature = "half")]
    half::f16: |number| Self::from_f32(f32::from(number) / 4.0);
    #[cfg(feature = "half")]
    half::bf16: |number| Self::from_f32(f32::from(number) / 4.0);
    #[cfg(feature = "float8")]
    float8::F8E4M3: |number| Self::from_f32(f32::from(number) / 4.0);
    #[cfg(feature = "float8")]
    float8::F8E5M2: |number| Self::from_f32(f32::from(number) / 4.0);
}

/// Returns the number that a rank sends at an index: 1 or 2.
fn sent(rank: usize, index: usize) -> u8 {
    1 + u8::from((index + rank).is_multiple_of(3))
}

fn elements<T: Small>(number: impl Fn(usize) -> u8) -> Vec<T> {
    (0..COUNT).map(|index| T::of(number(index))).collect()
}

fn every_type_reduction_is_exact(nccl: &Nccl) {
    fn check<T: Small>(comm: &Communicator) {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
            let expected = |index| {
                let numbers = (0..comm.size()).map(|rank| sent(rank, index));
                match op {
                    ReduceOp::Prod => numbers.product(),
                    ReduceOp::Max => numbers.max().unwrap(),
                    ReduceOp::Min => numbers.min().unwrap(),
                    ReduceOp::Sum => numbers.sum(),
                    op => panic!("{op} has no reference here"),
                }
            };
            let mut buffer = elements::<T>(|index| sent(comm.rank(), index));
            comm.all_reduce_in_place(&mut buffer, op, STREAM).unwrap();
            assert_eq!(buffer, elements::<T>(expected), "{} {op}", T::DATA_TYPE);
        }
    }
    for size in 1..=4 {
        on_threads(nccl, size, |comm| for_every_type!(check(&comm)));
    }
}

/// Uses a different scalar on every rank, passed by value and in memory.
fn every_type_pre_mul_sum_is_exact(nccl: &Nccl) {
    fn check<T: Small>(comm: &Communicator) {
        let rank = comm.rank() as u8;
        let scalar = [T::of(rank + 1)];
        // The scalars add up to 1 + 2 + 3; every other element is 0.
        let number = |index: usize| u8::from(index.is_multiple_of(2));
        let expected = elements::<T>(|index| 6 * number(index));
        for op in [comm.pre_mul_sum(scalar[0]).unwrap(), comm.pre_mul_sum_device(&scalar).unwrap()] {
            let mut buffer = elements::<T>(number);
            comm.all_reduce_in_place(&mut buffer, &op, STREAM).unwrap();
            assert_eq!(buffer, expected, "{}", T::DATA_TYPE);
            let mut part = vec![T::of(0); 2];
            comm.reduce_scatter(&expected[..6], &mut part, &op, STREAM).unwrap();
            // 6 x 6 has too many bits for some types, so only zero or not is compared.
            assert!(part[1] == T::of(0) && part[0] != T::of(0), "{}: {part:?}", T::DATA_TYPE);
        }
    }
    on_threads(nccl, 3, |comm| for_every_type!(check(&comm)));
}

/// Returns the bytes of elements.
///
/// # Safety
/// The elements have no padding.
unsafe fn bytes_of<T>(elements: &[T]) -> &[u8] {
    // SAFETY: the caller guarantees that all bytes are initialized.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// Returns the bytes of elements.
///
/// # Safety
/// As for [`bytes_of`], and any bytes are an element.
unsafe fn bytes_of_mut<T>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

/// Operations on views whose type is known at run time, also such that divide a buffer.
fn every_runtime_type_is_exact(nccl: &Nccl) {
    fn check<T: Small>(comm: &Communicator) {
        let send: Vec<T> = elements(|index| sent(comm.rank(), index));
        let mut sums: Vec<T> = elements(|_| 0);
        let recv: SliceMut<'_, AnyElement> = SliceMut::from(&mut sums).into_any();
        assert_eq!((recv.data_type(), recv.len()), (T::DATA_TYPE, COUNT));
        comm.all_reduce(Slice::from(&send).into_any(), recv, ReduceOp::Sum, STREAM).unwrap();
        let expected: Vec<T> = elements(|index| (0..comm.size()).map(|rank| sent(rank, index)).sum());
        assert_eq!(sums, expected, "{}", T::DATA_TYPE);

        let (first, second) = SliceMut::from(&mut sums).into_any().split_at_mut(3).unwrap();
        assert_eq!((first.len(), second.len()), (3, COUNT - 3));
        comm.broadcast_in_place(second, 1, STREAM).unwrap();
        comm.all_reduce_in_place(first, ReduceOp::Max, STREAM).unwrap();
        assert_eq!(sums, expected, "{}", T::DATA_TYPE);

        // The same memory as bytes.
        let mut sums: Vec<T> = elements(|_| 0);
        // SAFETY: all bytes of both, of which any value is an element.
        let (from, to) = unsafe { (bytes_of(&send), bytes_of_mut(&mut sums)) };
        let (from, to) = (AnyBuffer::new(T::DATA_TYPE, from), AnyBuffer::new(T::DATA_TYPE, to));
        comm.all_reduce(from, to, ReduceOp::Sum, STREAM).unwrap();
        assert_eq!(sums, expected, "{}", T::DATA_TYPE);

        let scalar = [T::of(comm.rank() as u8 + 1)];
        // SAFETY: all bytes of the scalar.
        let bytes = unsafe { bytes_of(&scalar) };
        let by_value = comm.pre_mul_sum_any(T::DATA_TYPE, bytes).unwrap();
        let in_memory = comm.pre_mul_sum_device(Slice::from(&scalar).into_any()).unwrap();
        for op in [by_value, in_memory] {
            let mut buffer: Vec<T> = elements(|index| u8::from(index == 1));
            comm.all_reduce_in_place(SliceMut::from(&mut buffer).into_any(), &op, STREAM).unwrap();
            assert_eq!(buffer, elements::<T>(|index| 6 * u8::from(index == 1)), "{}", T::DATA_TYPE);
        }
    }
    on_threads(nccl, 3, |comm| for_every_type!(check(&comm)));
}
