//! Vector clocks: how far each stream has come, as seen from somewhere.

#[cfg(test)]
thread_local! {
    /// The number of steps that clocks of this thread were asked for.
    pub(crate) static COMPARISONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A component of clocks: that of a stream, and of another one once the stream is gone and the host knows its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Component(pub(crate) usize);

/// A step of a stream: an operation, or a part of it that others can know before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// The stream's component.
    pub(crate) component: Component,
    /// The step's number there, from 1.
    pub(crate) number: u64,
}

/// For each component, the number of its steps that come before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Clock(Vec<u64>);

impl Clock {
    fn get(&self, component: Component) -> u64 {
        self.0.get(component.0).copied().unwrap_or(0)
    }

    /// The number of components that are known.
    #[cfg(test)]
    pub(crate) fn components(&self) -> usize {
        self.0.len()
    }

    /// Returns whether a step comes before.
    pub(crate) fn includes(&self, step: Step) -> bool {
        #[cfg(test)]
        COMPARISONS.set(COMPARISONS.get() + 1);
        self.get(step.component) >= step.number
    }

    /// Returns whether everything that another clock includes comes before.
    pub(crate) fn includes_all(&self, other: &Self) -> bool {
        other.0.iter().enumerate().all(|(index, &number)| self.get(Component(index)) >= number)
    }

    /// Includes a step and those before it.
    pub(crate) fn advance(&mut self, Step { component: Component(index), number }: Step) {
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = self.0[index].max(number);
    }

    /// Includes everything that another clock includes.
    pub(crate) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, &number) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(number);
        }
    }
}
