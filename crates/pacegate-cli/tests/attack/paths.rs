//! Every spelling of a path that the upstream serves as the limited resource is counted.
