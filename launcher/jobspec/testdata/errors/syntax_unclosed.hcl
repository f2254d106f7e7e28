job "demo" { # error: Unclosed configuration block
  workers {
    cuont = 2
  }
