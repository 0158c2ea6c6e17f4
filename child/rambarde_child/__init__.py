"""All that runs in the zygote and in the sandbox. The standard library and msgspec only."""
