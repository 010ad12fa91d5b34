//! Connections and streams that say nothing must not keep others out.
