job "demo" {
  workers {
    count = # error: Invalid expression
  }
}
