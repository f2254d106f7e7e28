job "demo" {
  env = {}
  env = {} # error: Attribute redefined
  nonsense = 1
}
