// Package rules reads the rules by which frames are dropped. docs/guest.md has the
// language.
package rules
