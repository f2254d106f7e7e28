job "demo" { # error: Missing block "provider" | error: Missing block "workers" | error: Missing block "run"
}
