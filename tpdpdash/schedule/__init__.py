"""Pipeline schedules: action lists, in-flight counts and bubbles in closed form, and the timeline simulation."""
