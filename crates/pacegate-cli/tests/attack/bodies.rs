//! Bodies that are announced and never sent must not fill the memory.
