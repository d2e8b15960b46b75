"""Object stores."""
