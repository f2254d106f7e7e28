job 'demo' { # error: Argument or block definition required | error: Invalid character
}
