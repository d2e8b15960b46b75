"""The sink for whatever database SQLAlchemy reaches."""
