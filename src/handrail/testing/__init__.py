"""What tests need: scripted models, strict local servers, and what is built on them."""
