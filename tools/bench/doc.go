// Package bench compares the cost of several ways of doing one thing.
//
// On a shared machine the same thing costs 15 % more or less from one minute to
// the next. So the ways are measured in turn, in rounds, and compared within each
// round; what is reported is the median over the rounds and how far they spread.
package bench
